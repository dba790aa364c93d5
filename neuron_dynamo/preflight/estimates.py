"""Limits on a program as a whole: device memory, number of instructions, bytes of constants, groups of ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

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


def whole(entry: Function, operations: Sequence[Operation], target: Target, aliases: Sequence[tuple[int, int]] = ()) -> Iterator[Fault]:
    """Faults of the program with this entry; `operations` are all of its ops, those of regions and called functions too."""
    yield from _memory(entry, target, aliases)
    if (count := instructions(operations)) > INSTRUCTIONS:
        what = f"about {count:,} instructions, by a rough estimate; the compiler's ceiling is {INSTRUCTIONS:,}"
        yield Fault("NCC_EBVF030", what, _SMALLER, refused=False)
    constants = sum(size_of(o.results[0]) for o in operations if o.name == "stablehlo.constant")
    if constants > CONSTANTS:
        what = f"{constants / _GIB:.1f} GiB of constants, of which an HLO proto holds 2"
        yield Fault("", what, "make them inputs: parameters or buffers")
    groupings = {str(np.asarray(o.attributes.get("replica_groups")).tolist()) for o in operations if o.name in COLLECTIVES}
    if len(groupings) > COMMUNICATORS:
        what = f"collectives over {len(groupings)} different groupings of ranks; a NEFF may have {COMMUNICATORS}"
        yield Fault("", what, "use fewer process groups in one graph")


def _memory(entry: Function, target: Target, aliases: Sequence[tuple[int, int]]) -> Iterator[Fault]:
    if target.memory is None:
        return
    results = next((o.operands for o in reversed(entry.operations) if o.name == "func.return"), ())
    own = {output for output, _ in aliases}
    io = sum(map(size_of, entry.arguments)) + sum(size_of(t) for index, t in enumerate(results) if index not in own)
    has = f"a logical core of {target.name} (lnc {target.lnc}) has {target.memory / _GIB:.0f}"
    if io > target.memory:
        yield Fault("NCC_EOOM001", f"{io / _GIB:.1f} GiB of inputs and outputs; {has}", _SMALLER)
        return
    peak = io + peak_of(entry)
    if peak > target.memory:
        what = f"about {peak / _GIB:.1f} GiB at once, {io / _GIB:.1f} of them inputs and outputs, by an estimate without fusion; {has}"
        yield Fault("NCC_EOOM001", what, _SMALLER, refused=False)


def peak_of(entry: Function) -> int:
    """Bytes of the intermediate results that live at once, at most, where each op of @main keeps its result until its last use."""
    last: dict[Operation, int] = {}
    for index, operation in enumerate(entry.operations):
        for maker in operation.makers:
            if maker is not None:
                last[maker] = index
    ending: dict[int, int] = {}
    alive = peak = 0
    for index, operation in enumerate(entry.operations):
        size = sum(map(size_of, operation.results))
        alive += size
        peak = max(peak, alive)
        end = last.get(operation, index)
        ending[end] = ending.get(end, 0) + size
        alive -= ending.pop(index, 0)
    return peak


def instructions(operations: Sequence[Operation]) -> int:
    """A rough number of machine instructions: one for each tile of a result, and for products one for each tile of the summed dims."""
    return sum(map(_tiles, operations))


def _tiles(operation: Operation) -> int:
    if not operation.results or operation.name in ("stablehlo.constant", "stablehlo.reshape", "func.call"):
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
