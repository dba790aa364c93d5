"""What a preflight check finds."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_dynamo.errors import SourceLine
from neuron_dynamo.lowering.reading import Operation


@dataclass(frozen=True)
class Finding:
    """One published restriction that a program meets.

    `code` is the compiler's own (NCC_...), or "" where the vendor's documents state the restriction without one. `refused` tells
    whether the compiler stops there; otherwise it goes on, and `what` says what is lost. `op` is the StableHLO op with its operand
    types; `fx_op` the op that it came from.
    """

    code: str
    what: str
    op: str
    remedy: str
    refused: bool = True
    fx_op: str = ""
    source: SourceLine | None = None

    def __str__(self) -> str:
        origin = f"\n    from {self.fx_op}" if self.fx_op else ""
        where = f"\n    at {self.source}" if self.source else ""
        return f"{self.code or 'unsupported'}: {self.what}\n    {self.op}{origin}{where}\n    what to do: {self.remedy}"


def shown(operation: Operation) -> str:
    """An op with its operand types, or its result's where it has no operands."""
    return f"{operation.name}({', '.join(map(str, operation.operands or operation.results))})"
