"""Adaptive pooling: window i of `out` covers floor(i * n / out) up to ceil((i + 1) * n / out) of a dim of size n.

Definitions: aten::_adaptive_avg_pool2d/3d, aten::adaptive_max_pool2d/3d and their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.ops.pooling import NO_POSITION, add_at_positions, pick_larger, plane_positions
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import gather, lowest, reduce, reduce_many

aten = torch.ops.aten


def _ranges(n: int, out: int) -> list[tuple[int, int]]:
    return [(i * n // out, -((i + 1) * n // -out)) for i in range(out)]


def _covering(n: int, out: int) -> list[tuple[int, int]]:
    """For each of n positions, the range of windows that cover it."""
    ranges = _ranges(n, out)
    covering = []
    for i in range(n):
        hits = [o for o, (start, end) in enumerate(ranges) if start <= i < end]
        covering.append((hits[0], hits[-1] + 1))
    return covering


def _windows(b: Builder, x: Value, dim: int, ranges: Sequence[tuple[int, int]], fill: Scalar) -> Value:
    """Replace dim `dim` by two: the range's number, and the position in it; `fill` behind the end of the shorter ranges."""
    n, out = x.shape[dim], len(ranges)
    longest = max(end - start for start, end in ranges)
    shape = (*x.shape[:dim], out, longest, *x.shape[dim + 1 :])
    if all(span == (i * longest, (i + 1) * longest) for i, span in enumerate(ranges)) and out * longest == n:
        return b.reshape(x, shape)
    starts = np.array([min(start, n - longest) for start, _ in ranges], dtype=np.int32)
    sizes = [longest if d == dim else size for d, size in enumerate(x.shape)]
    offsets = [d for d in range(len(shape)) if d != dim]
    begin = b.literal(starts.reshape(-1, 1), torch.int32)
    taken = gather(b, x, begin, offset_dims=offsets, collapsed=(), index_map=(dim,), slice_sizes=sizes, shape=shape)
    if all(end - start == longest for start, end in ranges):
        return taken
    inside = np.array([[start <= s + i < end for i in range(longest)] for s, (start, end) in zip(starts, ranges, strict=True)])
    mask = b.broadcast(b.literal(inside, torch.bool), shape, (dim, dim + 1))
    return b.select(mask, taken, b.like(taken, fill))


def _range_sums(b: Builder, x: Value, dim: int, ranges: Sequence[tuple[int, int]]) -> Value:
    return reduce(b, _windows(b, x, dim, ranges, 0), (dim + 1,), "add")


def _divide_by_sizes(b: Builder, x: Value, sizes: Sequence[int]) -> Value:
    """Divide by the element counts of the windows over input dims of `sizes`."""
    common, result = 1, x
    lead = x.ndim - len(sizes)
    for d, n in enumerate(sizes, lead):
        counts = np.array([end - start for start, end in _ranges(n, x.shape[d])])
        if (counts == counts[0]).all():
            common *= int(counts[0])
        else:
            divisor = b.literal(counts.astype(mlir.numpy_dtype(x.dtype)), x.dtype)
            result = b.div(result, b.broadcast(divisor, x.shape, (d,)))
    return result if common == 1 else b.div(result, b.like(result, common))


@lowering(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(b: Builder, x: Value, output_size: Sequence[int]) -> Value:
    """Mean of each window."""
    if not math.prod(b.out.shape) or not x.numel:
        return b.full(b.out.shape, 0, x.dtype)
    spatial = len(output_size)
    lead = x.ndim - spatial
    result = b.convert(x, compute_dtype(x.dtype))
    if all(out == 1 for out in output_size):
        result = reduce(b, result, range(lead, x.ndim), "add", keepdim=True)
    else:
        for d, out in enumerate(output_size, lead):
            result = _range_sums(b, result, d, _ranges(x.shape[d], out))
    return b.convert(_divide_by_sizes(b, result, x.shape[lead:]), x.dtype)


@lowering(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(b: Builder, grad: Value, x: Value) -> Value:
    return _avg_backward(b, grad, x, 2)


@lowering(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(b: Builder, grad: Value, x: Value) -> Value:
    return _avg_backward(b, grad, x, 3)


def _avg_backward(b: Builder, grad: Value, x: Value, spatial: int) -> Value:
    """Each element of grad over its window's size, added to all elements of the window."""
    if not grad.numel or not x.numel:
        return b.full(x.shape, 0, x.dtype)
    lead = x.ndim - spatial
    result = _divide_by_sizes(b, b.convert(grad, compute_dtype(grad.dtype)), x.shape[lead:])
    if all(n == 1 for n in grad.shape[lead:]):
        return b.convert(b.expand(result, x.shape), x.dtype)
    for d in range(lead, x.ndim):
        n, out = x.shape[d], grad.shape[d]
        if n % out == 0:
            split = (*result.shape[: d + 1], n // out, *result.shape[d + 1 :])
            result = b.broadcast(result, split, [i if i <= d else i + 1 for i in range(result.ndim)])
            result = b.reshape(result, (*split[:d], n, *split[d + 2 :]))
        else:
            result = _range_sums(b, result, d, _covering(n, out))
    return b.convert(result, x.dtype)


@lowering(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(b: Builder, x: Value, output_size: Sequence[int]) -> tuple[Value, Value]:
    """Largest element of each window, and its position in the plane."""
    shape = b.out.shape
    if not math.prod(shape):
        return b.full(shape, 0, x.dtype), b.full(shape, 0, torch.int64)
    spatial = len(output_size)
    lead = x.ndim - spatial
    values, positions = x, plane_positions(b, x.shape, spatial)
    for i, out in enumerate(output_size):
        dim = lead + 2 * i
        ranges = _ranges(x.shape[lead + i], out)
        values = _windows(b, values, dim, ranges, lowest(x.dtype))
        positions = _windows(b, positions, dim, ranges, NO_POSITION)
    inside = [lead + 2 * i + 1 for i in range(spatial)]
    values, positions = reduce_many(
        b, [values, positions], [lowest(x.dtype), NO_POSITION], inside, lambda best, item: pick_larger(b, best, item)
    )
    return values, b.convert(positions, torch.int64)


@lowering(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(b: Builder, grad: Value, x: Value, indices: Value) -> Value:
    """Adds each element of grad at the position that its window's maximum came from."""
    return add_at_positions(b, grad, indices, x.shape, 2)


@lowering(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(b: Builder, grad: Value, x: Value, indices: Value) -> Value:
    """Adds each element of grad at the position that its window's maximum came from."""
    return add_at_positions(b, grad, indices, x.shape, 3)
