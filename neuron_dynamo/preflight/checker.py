"""Every op of a program against every rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuron_dynamo.lowering.program import ENTRY, OpSource
from neuron_dynamo.lowering.reading import Function, Operation, functions
from neuron_dynamo.preflight import (  # noqa: F401  (they register their rules)
    rules_collectives,
    rules_custom_calls,
    rules_dtypes,
    rules_indices,
    rules_integers,
    rules_ops,
    rules_windows,
)
from neuron_dynamo.preflight.calls import bound, unbound
from neuron_dynamo.preflight.downcasts import ALL, Downcast
from neuron_dynamo.preflight.estimates import whole
from neuron_dynamo.preflight.finding import Finding, shown
from neuron_dynamo.preflight.rule import Fault, rules_for
from neuron_dynamo.target import Target

WHOLE_PROGRAM = "the whole program"
"""Finding.op of what no single op is to blame for."""


def check(
    stablehlo: bytes,
    target: Target,
    sources: Sequence[OpSource] = (),
    aliases: Sequence[tuple[int, int]] = (),
    downcasts: frozenset[str] = ALL,
) -> list[Finding]:
    """All findings in a portable artifact, in program order, each once, those about the whole program last.

    `sources` is the Program's side table, for the user's lines; `aliases` its outputs that take their inputs' memory; `downcasts` the ops
    on integers that the compiler may narrow, as in downcasts.py. An op inside of a region or a called function is reported at the place of
    the op of @main that holds or calls it, once for each such place.
    """
    if target.is_host:
        return []
    module = functions(stablehlo)
    judge = _Judge(module, target, downcasts)
    places = {row.index: row for row in sources}
    found: dict[Finding, None] = {}
    entry = module[ENTRY]
    for index, operation in enumerate((Operation("func.func", entry.arguments, ()), *entry.operations), -1):
        place = places.get(index)
        fx_op, source = (place.fx_op, place.source) if place else ("", None)
        for fault, op in judge.of(operation):
            found[Finding(fault.code, fault.what, op, fault.remedy, fault.refused, fx_op, source)] = None
    for fault in whole(module, target, aliases):
        found[Finding(fault.code, fault.what, WHOLE_PROGRAM, fault.remedy, fault.refused)] = None
    return list(found)


class _Judge:
    """Faults with the ops that they are of.

    A function is judged once, however many ops call it, apart from those of its ops that are judged by what made their operands, where
    that stands at the call: the compiler sees the calls inlined.
    """

    def __init__(self, module: dict[str, Function], target: Target, downcasts: frozenset[str]) -> None:
        self._module, self._target, self._downcasts = module, target, downcasts
        self._functions: dict[str, tuple[tuple[tuple[Fault, str], ...], tuple[Operation, ...]]] = {}

    def of(self, operation: Operation) -> Iterator[tuple[Fault, str]]:
        """Those of an op, then those of what it holds and calls."""
        yield from self._alone(operation)
        for region in operation.regions:
            for inner in region:
                yield from self.of(inner)
        if operation.call in self._module:
            faults, open_ops = self._function(operation.call)
            yield from faults
            for inner in open_ops:
                yield from self._alone(bound(inner, operation.makers))

    def _alone(self, operation: Operation) -> Iterator[tuple[Fault, str]]:
        for judge in rules_for(operation.name):
            for fault in judge(operation, self._target):
                yield fault.settled(self._downcasts) if isinstance(fault, Downcast) else fault, shown(operation)

    def _function(self, name: str) -> tuple[tuple[tuple[Fault, str], ...], tuple[Operation, ...]]:
        if name not in self._functions:
            self._functions[name] = ((), ())  # of a function that calls itself, which no compiler takes
            operations = self._module[name].operations
            open_ops = unbound(operations)
            left_open = frozenset(open_ops)
            closed = [operation for operation in operations if operation not in left_open]
            self._functions[name] = (tuple(found for operation in closed for found in self.of(operation)), open_ops)
        return self._functions[name]
