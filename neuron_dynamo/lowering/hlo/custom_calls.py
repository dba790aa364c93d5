"""Composites that neuronx-cc has a custom call for, behind the option `custom_calls`.

Operands, results and backend_config are those that the vendor's open code shows for each target; there is no published specification, and
nothing here ran on a device. A composite of any other form keeps its decomposition, which is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuron_dynamo.lowering.hlo.schema import API_VERSION

_PREFIX = "neuron_dynamo."
Attributes = dict[str, Any]


def use_custom_calls(operations: Sequence[Any]) -> None:
    """Replace composites among the MLIR `operations` of a function by custom calls."""
    from torch_mlir import ir

    for view in operations:
        operation = view.operation
        if operation.name != "stablehlo.composite":
            continue
        write = _WRITERS.get(ir.StringAttr(operation.attributes["name"]).value.removeprefix(_PREFIX))
        if write is None:
            continue
        with ir.InsertionPoint(operation), operation.location:
            results = write(_Call(ir, operation))
        if results is None:
            continue
        for old, new in zip(operation.results, results, strict=True):
            old.replace_all_uses_with(new)
        operation.erase()


class _Call:
    """One composite, and how a writer emits in its place."""

    def __init__(self, ir: Any, operation: Any) -> None:
        self._ir = ir
        self.operands, self.results = list(operation.operands), list(operation.results)
        found = operation.attributes.get("composite_attributes", ())
        self.attributes: Attributes = {named.name: _plain(ir, named.attr) for named in found}

    def types(self, *values: Any) -> list[Any]:
        return [self._ir.RankedTensorType(value.type) for value in values]

    @property
    def last_dim(self) -> int:
        return int(self.types(self.operands[0])[0].rank - 1)

    def is_like(self, *values: Any) -> bool:
        """Whether all values have the type of the only result."""
        return len(self.results) == 1 and all(value.type == self.results[0].type for value in values)

    def is_float(self, value: Any) -> bool:
        return isinstance(self.types(value)[0].element_type, self._ir.FloatType)

    def emit(self, name: str, types: list[Any], operands: list[Any], attributes: Attributes | None = None) -> list[Any]:
        made = self._ir.Operation.create(f"stablehlo.{name}", results=types, operands=operands, attributes=attributes or {})
        return list(made.results)

    def custom(self, target: str, operands: list[Any], types: list[Any], config: str = "") -> list[Any]:
        """A pure custom call."""
        text = self._ir.StringAttr.get
        version = self._ir.IntegerAttr.get(self._ir.IntegerType.get_signless(32), API_VERSION)
        attributes = {"call_target_name": text(target), "backend_config": text(config), "api_version": version}
        return self.emit("custom_call", types, operands, attributes)

    def scalar(self, value: float) -> Any:
        """A 0-d float32 constant."""
        kind = self._ir.RankedTensorType.get([], self._ir.F32Type.get())
        filled = self._ir.DenseElementsAttr.get_splat(kind, self._ir.FloatAttr.get(self._ir.F32Type.get(), value))
        (made,) = self.emit("constant", [kind], [], {"value": filled})
        return made

    def tensor(self, like: Any, element: Any) -> Any:
        """The type of `like` with another element type."""
        return self._ir.RankedTensorType.get(self.types(like)[0].shape, element)

    def int32(self) -> Any:
        return self._ir.IntegerType.get_signless(32)


def _plain(ir: Any, attribute: Any) -> Any:
    for kind in (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr):
        if isinstance(attribute, kind):
            return kind(attribute).value
    return None


Writer = Callable[[_Call], list[Any] | None]


def _unary(target: str) -> Writer:
    def write(call: _Call) -> list[Any] | None:
        (x,) = call.operands
        return call.custom(target, [x], [x.type]) if call.is_like(x) else None

    return write


def _gelu(call: _Call) -> list[Any] | None:
    return _unary("AwsNeuronGelu" if call.attributes["approximate"] == "none" else "AwsNeuronGeluApprxTanh")(call)


def _gelu_backward(call: _Call) -> list[Any] | None:
    """The call gives the derivative, which the incoming gradient multiplies."""
    if call.attributes["approximate"] != "none" or len(call.operands) != 2 or not call.is_like(*call.operands):
        return None
    grad, x = call.operands
    slope = call.custom("AwsNeuronGeluBackward", [x], [x.type])
    return call.emit("multiply", [x.type], [grad, *slope])


def _softmax(call: _Call) -> list[Any] | None:
    if len(call.operands) != 1 or not call.is_like(*call.operands):
        return None
    return call.custom("AwsNeuronSoftmax", call.operands, [call.results[0].type], str(call.attributes["dim"]))


def _softmax_backward(call: _Call) -> list[Any] | None:
    if len(call.operands) != 2 or not call.is_like(*call.operands):
        return None
    return call.custom("AwsNeuronSoftmaxBackward", call.operands, [call.results[0].type], str(call.attributes["dim"]))


def _rms_norm(call: _Call) -> list[Any] | None:
    """x, a weight over the last dim, and eps as a float32 scalar."""
    if len(call.operands) != 2 or not call.is_like(call.operands[0]):
        return None
    x, weight = call.types(*call.operands)
    if weight.rank != 1 or weight.element_type != x.element_type:
        return None
    operands = [*call.operands, call.scalar(call.attributes["eps"])]
    return call.custom("AwsNeuronRmsNorm", operands, [call.results[0].type], str(call.last_dim))


def _topk(call: _Call) -> list[Any] | None:
    """Values and their places, sorted, of the largest elements along the last dim of floats."""
    given = call.attributes
    if len(call.operands) != 1 or given["dim"] != call.last_dim or not given["largest"] or not given["sorted"]:
        return None
    if not call.is_float(call.operands[0]):
        return None
    first = call.results[0]
    values = call.tensor(first, call.types(call.operands[0])[0].element_type)
    places = call.tensor(first, call.int32())
    made = call.custom("AwsNeuronTopK", call.operands, [values, places], str(given["k"]))
    return [made[0] if call.is_float(result) else call.emit("convert", [result.type], [made[1]])[0] for result in call.results]


_WRITERS: dict[str, Writer] = {
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "silu": _unary("AwsNeuronSilu"),
    "softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "rms_norm": _rms_norm,
    "topk": _topk,
}
