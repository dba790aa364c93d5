"""Every op of a program against every rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuron_dynamo.lowering.program import ENTRY, OpSource
from neuron_dynamo.lowering.reading import Function, Operation, functions
from neuron_dynamo.preflight import (  # noqa: F401  (they register their rules)
    rules_collectives,
    rules_custom_calls,
    rules_dtypes,
    rules_integers,
    rules_ops,
    rules_windows,
)
from neuron_dynamo.preflight.estimates import whole
from neuron_dynamo.preflight.finding import Finding, shown
from neuron_dynamo.preflight.rule import rules_for
from neuron_dynamo.target import Target

WHOLE_PROGRAM = "the whole program"
"""Finding.op of what no single op is to blame for."""


def check(stablehlo: bytes, target: Target, sources: Sequence[OpSource] = (), aliases: Sequence[tuple[int, int]] = ()) -> list[Finding]:
    """All findings in a portable artifact, in program order, each once, those about the whole program last.

    `sources` is the Program's side table, for the user's lines; `aliases` its outputs that take their inputs' memory. An op inside of a
    region or a called function is reported at the place of the op of @main that holds or calls it.
    """
    if target.is_host:
        return []
    module = functions(stablehlo)
    places = {row.index: row for row in sources}
    found: dict[Finding, None] = {}
    operations = list(_operations(module))
    for index, operation in operations:
        place = places.get(index)
        for judge in rules_for(operation.name):
            for fault in judge(operation, target):
                fx_op, source = (place.fx_op, place.source) if place else ("", None)
                found[Finding(fault.code, fault.what, shown(operation), fault.remedy, fault.refused, fx_op, source)] = None
    entry = module[ENTRY]
    for fault in whole(entry, [operation for _, operation in operations], target, aliases):
        found[Finding(fault.code, fault.what, WHOLE_PROGRAM, fault.remedy, fault.refused)] = None
    return list(found)


def _operations(module: dict[str, Function]) -> Iterator[tuple[int, Operation]]:
    """(index of the op of @main, op) for every op, within regions and called functions too; a function is visited once."""
    called: set[str] = set()

    def visit(index: int, operation: Operation) -> Iterator[tuple[int, Operation]]:
        yield index, operation
        within = [inner for region in operation.regions for inner in region]
        if operation.call in module and operation.call not in called:
            called.add(operation.call)
            within += module[operation.call].operations
        for inner in within:
            yield from visit(index, inner)

    entry = module[ENTRY]
    yield -1, Operation("func.func", entry.arguments, ())
    for index, operation in enumerate(entry.operations):
        yield from visit(index, operation)
