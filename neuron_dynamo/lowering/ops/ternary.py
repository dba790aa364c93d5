"""Elementwise ops of three tensors, which optimizers use: lerp, addcmul, addcdiv, fma. Definitions: PyTorch's documentation of each op.

Float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

import torch
from torch._inductor import inductor_prims

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import lowering

aten = torch.ops.aten


@lowering(aten.lerp.Scalar)
def lerp_scalar(b: Builder, start: Value, end: Value, weight: Scalar) -> Value:
    """start + weight * (end - start), counted from the nearer side, as ATen does."""
    start, end = together(b, [start, end], compute_dtype(b.out.dtype))
    step = b.sub(end, start)
    near_start = abs(weight) < 0.5
    part = b.mul(step, b.like(step, weight if near_start else 1 - weight))
    return b.convert(b.add(start, part) if near_start else b.sub(end, part), b.out.dtype)


@lowering(aten.lerp.Tensor)
def lerp_tensor(b: Builder, start: Value, end: Value, weight: Value) -> Value:
    start, end, weight = together(b, [start, end, weight], compute_dtype(b.out.dtype))
    step = b.sub(end, start)
    near_start = b.add(start, b.mul(weight, step))
    near_end = b.sub(end, b.mul(step, b.sub(b.like(weight, 1), weight)))
    size = b.emit("abs", [weight], weight.shape, weight.dtype.to_real())
    return b.convert(b.select(b.compare("LT", size, b.like(size, 0.5)), near_start, near_end), b.out.dtype)


def _scaled(b: Builder, x: Value, value: Scalar) -> Value:
    return x if value == 1 else b.mul(x, b.like(x, value))


@lowering(aten.addcmul.default)
def addcmul(b: Builder, x: Value, left: Value, right: Value, value: Scalar = 1) -> Value:
    """x + value * left * right."""
    x, left, right = together(b, [x, left, right], compute_dtype(b.out.dtype))
    return b.convert(b.add(x, b.mul(_scaled(b, left, value), right)), b.out.dtype)


@lowering(aten.addcdiv.default)
def addcdiv(b: Builder, x: Value, left: Value, right: Value, value: Scalar = 1) -> Value:
    """x + value * left / right."""
    x, left, right = together(b, [x, left, right], compute_dtype(b.out.dtype))
    return b.convert(b.add(x, b.div(_scaled(b, left, value), right)), b.out.dtype)


@lowering(inductor_prims.fma)
def fma(b: Builder, x: Value | Scalar, y: Value | Scalar, z: Value | Scalar) -> Value:
    """x * y + z: what Dynamo makes of addcmul_, add_ and sub_ in an optimizer."""
    x, y, z = together(b, [x, y, z], compute_dtype(b.out.dtype))
    return b.convert(b.add(b.mul(x, y), z), b.out.dtype)
