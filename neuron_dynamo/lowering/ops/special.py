"""Special functions. Definitions: PyTorch's documentation of each op."""

from __future__ import annotations

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.ops.elementwise import widened
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import custom_call

aten = torch.ops.aten


def erf_of(b: Builder, x: Value) -> Value:
    """The error function of a float32 or float64 tensor."""
    return custom_call(b, "mhlo.erf", [x], x.shape, x.dtype, "mhlo.attributes = {}, mhlo.version = 1 : i64")


@lowering(aten.erf.default)
def erf(b: Builder, x: Value) -> Value:
    return widened(b, x, lambda wide: erf_of(b, wide))
