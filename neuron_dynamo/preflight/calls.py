"""Ops of a called function with their operands traced into the caller."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from neuron_dynamo.lowering.reading import ARGUMENT, Operation

BY_MAKERS = frozenset(
    f"stablehlo.{name}" for name in ("custom_call", "dynamic_slice", "dynamic_update_slice", "gather", "reduce", "scatter")
)
"""Ops whose rules look at what made their operands."""
_TRACED = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "compare", "concatenate", "convert", "reshape", "select", "transpose")
)
"""Ops through which these rules look."""


def unbound(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Those of a function's ops whose rules would find one of its arguments behind an operand."""
    reaching: set[Operation | None] = set()
    found = []
    for operation in operations:
        if any(made in reaching or (made is not None and made.name == ARGUMENT) for made in operation.makers):
            if operation.name in _TRACED:
                reaching.add(operation)
            elif operation.name in BY_MAKERS:
                found.append(operation)
    return tuple(found)


def bound(operation: Operation, given: Sequence[Operation | None]) -> Operation:
    """`operation` as if it stood where its function is called with operands that `given` made."""
    known: dict[Operation, Operation | None] = {}

    def trace(made: Operation | None) -> Operation | None:
        if made is None:
            return None
        if made not in known:
            if made.name == ARGUMENT:
                known[made] = given[made.attributes["number"]]
            else:
                known[made] = dataclasses.replace(made, makers=tuple(map(trace, made.makers))) if made.name in _TRACED else made
        return known[made]

    return dataclasses.replace(operation, makers=tuple(map(trace, operation.makers)))
