"""A Program's StableHLO as plain Python objects, for those who judge it: the other direction of builder.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.program import ENTRY


@dataclass(frozen=True)
class Type:
    """A tensor type: sizes (None where the program leaves it open) and element type as MLIR spells it, e.g. "ui8"."""

    shape: tuple[int | None, ...]
    element: str

    @property
    def dtype(self) -> torch.dtype | None:
        """The element type as torch's, None where torch has none such."""
        return mlir.DTYPES.get(self.element)

    def __str__(self) -> str:
        return f"{self.element}[{','.join('?' if n is None else str(n) for n in self.shape)}]"


@dataclass(frozen=True, eq=False)
class Operation:
    """One op.

    `makers` are the ops that made its operands (for an argument of the function, an op ARGUMENT with its "number"; None for one of a
    region), `regions` the ops of each of its regions, `call` the symbol of the function that it calls, if any. `attributes` holds
    integers, strings, booleans, lists of them and NumPy arrays; others as MLIR's text.
    """

    name: str
    operands: tuple[Type, ...]
    results: tuple[Type, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    makers: tuple[Operation | None, ...] = ()
    regions: tuple[tuple[Operation, ...], ...] = ()
    call: str | None = None


ARGUMENT = "func.argument"
"""Operation.name of what stands in `makers` for a function's argument."""


@dataclass(frozen=True)
class Function:
    """A function of the module: the types of its arguments, and its ops in order."""

    arguments: tuple[Type, ...]
    operations: tuple[Operation, ...]


def functions(stablehlo: bytes) -> dict[str, Function]:
    """The functions of a portable artifact by symbol; `ENTRY` is among them."""
    from neuron_dynamo.lowering.pipeline import stablehlo_module

    module = stablehlo_module(stablehlo)
    found = {}
    for function in module.body.operations:
        block = function.regions[0].blocks[0]
        types = tuple(_type(a.type) for a in block.arguments)
        made = {a: Operation(ARGUMENT, (), (t,), {"number": n}) for n, (a, t) in enumerate(zip(block.arguments, types, strict=True))}
        found[function.name.value] = Function(types, _block(block, made))
    assert ENTRY in found
    return found


def _type(kind: Any) -> Type:
    if not hasattr(kind, "element_type"):
        return Type((), str(kind))
    if not kind.has_rank:
        return Type((None,), str(kind.element_type))
    return Type(tuple(None if kind.is_dynamic_dim(d) else kind.get_dim_size(d) for d in range(kind.rank)), str(kind.element_type))


def _block(block: Any, made: dict[Any, Operation]) -> tuple[Operation, ...]:
    return tuple(_operation(view.operation, made) for view in block.operations)


def _operation(operation: Any, made: dict[Any, Operation]) -> Operation:
    attributes = {name: _attribute(operation.attributes[name]) for name in operation.attributes}
    call = attributes.get("callee") or attributes.get("decomposition")
    read = Operation(
        operation.name,
        tuple(_type(v.type) for v in operation.operands),
        tuple(_type(v.type) for v in operation.results),
        attributes,
        tuple(made.get(v) for v in operation.operands),
        tuple(tuple(o for block in region.blocks for o in _block(block, made)) for region in operation.regions),
        str(call).removeprefix("@") if call is not None else None,
    )
    made.update((result, read) for result in operation.results)
    return read


def _attribute(attribute: Any) -> Any:
    kind = type(attribute).__name__
    if kind in ("IntegerAttr", "BoolAttr", "StringAttr"):
        return attribute.value
    if kind in ("DenseI64ArrayAttr", "DenseBoolArrayAttr"):
        return list(attribute)
    if kind == "DenseIntElementsAttr":
        return np.asarray(attribute)
    return "" if kind == "DenseFPElementsAttr" else str(attribute)
