"""Negative log likelihood and its gradient. Definitions: ATen's nll_loss and nll_loss2d, forward and backward.

The other losses go by PyTorch's decompositions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import pick, reduce

aten = torch.ops.aten

_NONE, _MEAN = 0, 1


def _class_dim(x: Value) -> int:
    return 0 if x.ndim == 1 else 1


def _indices(b: Builder, target: Value, shape: Sequence[int], ignore_index: int) -> tuple[Value, Value]:
    """(target, whether it counts), both of `shape`. An ignored target never picks a class."""
    target = b.reshape(target, shape) if target.numel == math.prod(shape) else b.reshape(b.slice_dim(target, 0, 0, 1), shape)
    return target, b.compare("NE", target, b.like(target, ignore_index))


def _hits(b: Builder, target: Value, shape: Sequence[int], dim: int) -> Value:
    """One-hot: whether the position along `dim` is the target; target has no `dim`."""
    spread = b.broadcast(target, shape, [d for d in range(len(shape)) if d != dim])
    return b.compare("EQ", b.iota(shape, dim, target.dtype), spread)


@lowering(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(b: Builder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int) -> tuple[Value, Value]:
    """x [C], [N, C] or [N, C, H, W]; target without C. Returns (loss, sum of the weights of counted targets)."""
    dtype = x.dtype
    dim = _class_dim(x)
    target, counted = _indices(b, target, x.shape[:dim] + x.shape[dim + 1 :], ignore_index)
    wide = compute_dtype(dtype)
    losses = b.neg(b.convert(pick(b, x, target, dim), wide))
    zero = b.like(losses, 0)
    weights = b.convert(counted, wide)
    if weight is not None:
        weights = b.select(counted, b.convert(pick(b, weight, target, 0), wide), zero)
        losses = b.mul(losses, weights)
    losses = b.select(counted, losses, zero)
    every = tuple(range(losses.ndim))
    if reduction == _NONE and x.ndim > 1:
        return b.convert(losses, dtype), b.full((), 0, dtype)
    total = reduce(b, weights, every, "add")
    loss = reduce(b, losses, every, "add")
    if reduction == _MEAN:
        loss = b.div(loss, total)
    return b.convert(loss, dtype), b.convert(total, dtype)


@lowering(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    """-grad * weight at the target, 0 elsewhere; divided by the total weight for the mean. A comparison, not a scatter."""
    dim = _class_dim(x)
    others = [d for d in range(x.ndim) if d != dim]
    target, counted = _indices(b, target, x.shape[:dim] + x.shape[dim + 1 :], ignore_index)
    slope = b.neg(b.convert(grad, compute_dtype(x.dtype)))
    if reduction == _MEAN:
        slope = b.div(b.reshape(slope, ()), b.reshape(b.convert(total_weight, slope.dtype), ()))
    if slope.numel == 1:
        slope = b.reshape(slope, ())
    slope = b.expand(slope, target.shape)
    slope = b.select(counted, slope, b.like(slope, 0))
    full = b.broadcast(slope, x.shape, others)
    if weight is not None:
        full = b.mul(full, b.broadcast(b.convert(weight, full.dtype), x.shape, (dim,)))
    return b.convert(b.select(_hits(b, target, x.shape, dim), full, b.like(full, 0)), x.dtype)
