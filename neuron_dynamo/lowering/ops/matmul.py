"""Matrix products as stablehlo.dot_general. Low-precision floats accumulate in float32, as ATen's kernels do, and round once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import dot_general

aten = torch.ops.aten


@lowering(aten.mm.default)
def mm(b: Builder, x: Value, y: Value) -> Value:
    return dot_general(b, x, y, ((1,), (0,)))


@lowering(aten.bmm.default)
def bmm(b: Builder, x: Value, y: Value) -> Value:
    return dot_general(b, x, y, ((2,), (1,)), ((0,), (0,)))


@lowering(aten.mv.default)
def mv(b: Builder, x: Value, y: Value) -> Value:
    return dot_general(b, x, y, ((1,), (0,)))


@lowering(aten.dot.default, aten.vdot.default)
def dot(b: Builder, x: Value, y: Value) -> Value:
    return dot_general(b, x, y, ((0,), (0,)))


def _accumulate(b: Builder, start: Value, product: Value, beta: Scalar, alpha: Scalar) -> Value:
    """beta * start + alpha * product; beta 0 ignores start, even its NaN."""
    if alpha != 1:
        product = b.mul(product, b.like(product, alpha))
    if beta == 0:
        return product
    start = b.value(start, product.dtype, product.shape)
    return b.add(product, start if beta == 1 else b.mul(start, b.like(start, beta)))


@lowering(aten.addmm.default)
def addmm(b: Builder, start: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return _accumulate(b, start, mm(b, x, y), beta, alpha)


@lowering(aten.baddbmm.default)
def baddbmm(b: Builder, start: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return _accumulate(b, start, bmm(b, x, y), beta, alpha)


@lowering(aten.addmv.default)
def addmv(b: Builder, start: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return _accumulate(b, start, mv(b, x, y), beta, alpha)


def linear(b: Builder, x: Value, weight: Value, bias: Value | None) -> Value:
    """x [..., in] times weight [out, in] transposed, plus bias [out]."""
    product = dot_general(b, x, weight, ((x.ndim - 1,), (1,)))
    return product if bias is None else b.add(product, b.expand(bias, product.shape))


def batch_dims(rank: int) -> Sequence[int]:
    """All dims but the last two."""
    return tuple(range(rank - 2))
