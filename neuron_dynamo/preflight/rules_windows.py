"""Forms of reductions, windows and convolutions that are refused."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dynamo.lowering.reading import Operation
from neuron_dynamo.preflight.published import REDUCE_BODIES
from neuron_dynamo.preflight.rule import Fault, rule
from neuron_dynamo.target import Target


def _body_fault(operation: Operation) -> Iterator[Fault]:
    body = [inner.name for inner in operation.regions[0] if not inner.name.endswith("return")]
    if len(body) != 1 or body[0] not in REDUCE_BODIES:
        what = ", ".join(name.removeprefix("stablehlo.") for name in body) or "nothing"
        yield Fault("NCC_EVRF001", f"a reduction by {what}", "reduce by add, multiply, minimum or maximum")


def _constant(operation: Operation | None) -> bool:
    return operation is not None and operation.name == "stablehlo.constant"


@rule("stablehlo.reduce")
def reduce(operation: Operation, target: Target) -> Iterator[Fault]:
    if len(operation.results) != 1:
        yield Fault("NCC_EVRF001", "a reduction of several tensors at once", "reduce each one by itself")
        return
    yield from _body_fault(operation)
    if not _constant(operation.makers[1]):
        yield Fault("NCC_EVRF001", "a reduction from an initial value that is not a constant", "combine the value with the result")


@rule("stablehlo.reduce_window")
def reduce_window(operation: Operation, target: Target) -> Iterator[Fault]:
    if len(operation.results) != 1:
        yield Fault("NCC_EVRF019", "a windowed reduction of several tensors at once", "reduce each one by itself")
    else:
        yield from _body_fault(operation)
    if max(operation.attributes.get("base_dilations", [1]), default=1) > 1:
        yield Fault("NCC_EVRF017", "a windowed reduction with base dilation", "pad between the elements first")
    if max(operation.attributes.get("window_dilations", [1]), default=1) > 1:
        yield Fault("NCC_EVRF018", "a windowed reduction with window dilation", "combine slices of the input")


@rule("stablehlo.convolution")
def convolution(operation: Operation, target: Target) -> Iterator[Fault]:
    strides, of_input, of_kernel = (
        max(operation.attributes.get(name, [1]), default=1) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    if of_input > 1 and of_kernel > 1:
        yield Fault("NCC_EVRF010", "a convolution that dilates both its input and its kernel", "dilate one of them by padding")
    if of_input > 1 and strides > 1:
        yield Fault("NCC_EVRF011", "a convolution with strides that dilates its input", "dilate the input by padding")
