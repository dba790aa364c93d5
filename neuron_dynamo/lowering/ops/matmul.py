"""Matrix products as stablehlo.dot_general. Low-precision floats accumulate in float32, as ATen's kernels do, and round once."""

from __future__ import annotations

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering

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
    """beta * start + alpha * product, in the product's dtype, rounded once; beta 0 ignores start, even its NaN."""
    if alpha != 1:
        product = b.mul(product, b.like(product, alpha))
    if beta != 0:
        start = b.value(start, product.dtype, product.shape)
        product = b.add(product, start if beta == 1 else b.mul(start, b.like(start, beta)))
    return b.convert(product, b.out.dtype)


@lowering(aten.addmm.default)
def addmm(b: Builder, start: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return _accumulate(b, start, dot_general(b, x, y, ((1,), (0,)), out_dtype=compute_dtype(x.dtype)), beta, alpha)


@lowering(aten.baddbmm.default)
def baddbmm(b: Builder, start: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return _accumulate(b, start, dot_general(b, x, y, ((2,), (1,)), ((0,), (0,)), out_dtype=compute_dtype(x.dtype)), beta, alpha)


@lowering(aten.addmv.default)
def addmv(b: Builder, start: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return _accumulate(b, start, dot_general(b, x, y, ((1,), (0,)), out_dtype=compute_dtype(x.dtype)), beta, alpha)
