"""Limits on a program as a whole: device memory, number of instructions, bytes of constants, groups of ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuron_dynamo.lowering.program import ENTRY
from neuron_dynamo.lowering.reading import Function, Operation, Type
from neuron_dynamo.preflight.rule import Fault
from neuron_dynamo.preflight.rules_collectives import COLLECTIVES
from neuron_dynamo.target import Target

INSTRUCTIONS = 10_000_000
"""The compiler's own ceiling, as users met it; its flags raise it."""
COMMUNICATORS = 16
"""Distinct groupings of ranks that one NEFF may hold (12 before SDK 2.32)."""
CONSTANTS = 2**31 - 1
"""Bytes: the HLO proto holds every constant, and protobuf takes no more."""

_PARTITIONS, _COLUMNS = 128, 512
"""One instruction is reckoned to cover 128 partitions of up to 512 elements."""
_GIB = 2**30
_SMALLER = "compile a smaller graph: a smaller batch, or the model split over several devices"


def whole(module: dict[str, Function], target: Target, aliases: Sequence[tuple[int, int]] = ()) -> Iterator[Fault]:
    """Faults of the program as a whole. The compiler gets it with its calls inlined, so a function counts as often as it is called."""
    yield from _memory(module, target, aliases)
    sizes = totals(module)
    if sizes.instructions > INSTRUCTIONS:
        what = f"about {sizes.instructions:,} instructions, by a rough estimate; the compiler's ceiling is {INSTRUCTIONS:,}"
        yield Fault("NCC_EBVF030", what, _SMALLER, refused=False)
    if sizes.constants > CONSTANTS:
        what = f"{sizes.constants / _GIB:.1f} GiB of constants, of which an HLO proto holds 2"
        yield Fault("", what, "make them inputs: parameters or buffers")
    if len(sizes.groupings) > COMMUNICATORS:
        what = f"collectives over {len(sizes.groupings)} different groupings of ranks; a NEFF may have {COMMUNICATORS}"
        yield Fault("", what, "use fewer process groups in one graph")


def _memory(module: dict[str, Function], target: Target, aliases: Sequence[tuple[int, int]]) -> Iterator[Fault]:
    if target.memory is None:
        return
    entry = module[ENTRY]
    results = next((o.operands for o in reversed(entry.operations) if o.name == "func.return"), ())
    own = {output for output, _ in aliases}
    io = sum(map(size_of, entry.arguments)) + sum(size_of(t) for index, t in enumerate(results) if index not in own)
    has = f"a logical core of {target.name} (lnc {target.lnc}) has {target.memory / _GIB:.0f}"
    if io > target.memory:
        yield Fault("NCC_EOOM001", f"{io / _GIB:.1f} GiB of inputs and outputs; {has}", _SMALLER)
        return
    peak = io + peak_of(module)
    if peak > target.memory:
        what = f"about {peak / _GIB:.1f} GiB at once, {io / _GIB:.1f} of them inputs and outputs, by an estimate without fusion; {has}"
        yield Fault("NCC_EOOM001", what, _SMALLER, refused=False)


def peak_of(module: dict[str, Function]) -> int:
    """Bytes of the intermediate results that live at once, at most, where each op keeps its result until its last use.

    During a call, what lives in the caller lives beside what lives in the function that is called.
    """
    peaks: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in peaks:
            peaks[name] = 0
            peaks[name] = _peak(module[name].operations, lambda operation: of(operation.call) if operation.call in module else 0)
        return peaks[name]

    return of(ENTRY)


def _peak(operations: Sequence[Operation], within: Callable[[Operation], int]) -> int:
    """Most bytes at once in one function, where `within` are those that live in what an op calls, its results among them."""
    last: dict[Operation, int] = {}
    for index, operation in enumerate(operations):
        for maker in operation.makers:
            if maker is not None:
                last[maker] = index
    ending: dict[int, int] = {}
    alive = peak = 0
    for index, operation in enumerate(operations):
        size = sum(map(size_of, operation.results))
        peak = max(peak, alive + max(size, within(operation)))
        alive += size
        end = last.get(operation, index)
        ending[end] = ending.get(end, 0) + size
        alive -= ending.pop(index, 0)
    return peak


@dataclass(frozen=True)
class Totals:
    """Sums over every op of a program: machine instructions, bytes of constants, and the groupings of ranks that its collectives have.

    The number of instructions is rough: one for each tile of a result, and for products one for each tile of the summed dims.
    """

    instructions: int = 0
    constants: int = 0
    groupings: frozenset[str] = frozenset()

    def __add__(self, other: Totals) -> Totals:
        constants = self.constants + other.constants
        return Totals(self.instructions + other.instructions, constants, self.groupings | other.groupings)


def totals(module: dict[str, Function]) -> Totals:
    """Totals of the program, what is called counted at every call and what regions hold once."""
    known: dict[str, Totals] = {}

    def function(name: str) -> Totals:
        if name not in known:
            known[name] = Totals()
            known[name] = every(module[name].operations)
        return known[name]

    def every(operations: Iterable[Operation]) -> Totals:
        return sum(map(one, operations), Totals())

    def one(operation: Operation) -> Totals:
        if operation.call in module:
            return function(operation.call)
        inner = sum(map(every, operation.regions), Totals())
        constants = size_of(operation.results[0]) if operation.name == "stablehlo.constant" else 0
        ranks = {str(np.asarray(operation.attributes.get("replica_groups")).tolist())} if operation.name in COLLECTIVES else ()
        return inner + Totals(_tiles(operation), constants, frozenset(ranks))

    return function(ENTRY)


def _tiles(operation: Operation) -> int:
    if not operation.results or operation.name in ("stablehlo.constant", "stablehlo.reshape"):
        return 0
    most = max(_elements(t) for t in (*operation.results, *operation.operands))
    if operation.name in ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"):
        out, left, right = _elements(operation.results[0]), _elements(operation.operands[0]), _elements(operation.operands[1])
        # out = B*M*N, left = B*M*K, right = B*K*N: their product over out^2 is K^2 / B, so this is K, or too little for batches.
        summed = math.isqrt(max(1, left * right // max(1, out)))
        return math.ceil(out / (_PARTITIONS * _COLUMNS)) * math.ceil(summed / _PARTITIONS)
    return math.ceil(most / (_PARTITIONS * _COLUMNS))


def _elements(of: Type) -> int:
    return math.prod(n or 1 for n in of.shape)


def size_of(of: Type) -> int:
    """Bytes of a tensor of this type; elements of fewer than 8 bits, i1 among them, take a byte each."""
    digits = re.match(r"(?:complex<)?[a-z]+(\d+)", of.element)
    bits = int(digits[1]) if digits else 0
    return _elements(of) * -(-bits // 8) * (2 if of.element.startswith("complex") else 1)
