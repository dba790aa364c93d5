"""Max and average pooling with fixed windows, and their gradients. Definitions: the ATen schemas and PyTorch's nn.MaxPool / nn.AvgPool.

Leading dims (batch, channel) of any number are kept. Windows that ceil_mode hangs over the border see only what is there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.combining import fold_windows
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import lowest, reduce_window, scatter

aten = torch.ops.aten


@dataclass(frozen=True)
class Pool:
    """Windows over the last `spatial` dims: kernel, stride, padding and dilation of each, and the result's sizes."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    sizes: tuple[int, ...]
    outs: tuple[int, ...]

    @staticmethod
    def make(
        spatial: int,
        sizes: Sequence[int],
        outs: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> Pool:
        """ATen's arguments: one element serves every dim, and no stride means the kernel's size."""

        def full(values: Sequence[int] | int) -> tuple[int, ...]:
            values = [values] if isinstance(values, int) else list(values)
            return tuple(values) if len(values) == spatial else (values[0],) * spatial

        size = full(kernel)
        step = full(stride) if stride else size
        return Pool(size, step, full(padding), full(dilation), tuple(sizes[-spatial:]), tuple(outs[-spatial:]))

    @property
    def spatial(self) -> int:
        return len(self.kernel)

    def high(self) -> list[int]:
        """Padding behind the data that the last window needs."""
        parts = zip(self.sizes, self.outs, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [max(0, (out - 1) * s + (k - 1) * d + 1 - n - p) for n, out, k, s, p, d in parts]

    def windows(self, lead: int) -> dict[str, Any]:
        """Arguments of reduce_window for a tensor with `lead` dims before the spatial ones."""
        ones = (1,) * lead
        return {
            "window": ones + self.kernel,
            "strides": ones + self.stride,
            "padding": [(0, 0)] * lead + list(zip(self.padding, self.high(), strict=True)),
            "window_dilation": ones + self.dilation,
        }


# Max


def pick_larger(b: Builder, best: list[Value], item: list[Value]) -> list[Value]:
    """Combine (value, index) pairs as ATen's kernels scan: the first of equal values wins; of NaNs the last."""
    (value, index), (other, at) = best, item
    larger = b.compare("GT", other, value)
    earlier = b.binary("and", b.compare("EQ", other, value), b.compare("LT", at, index))
    take = b.binary("or", larger, earlier)
    if value.dtype.is_floating_point:
        later = b.binary("or", b.logical_not(b.is_nan(value)), b.compare("GT", at, index))
        take = b.binary("or", take, b.binary("and", b.is_nan(other), later))
    return [b.select(take, other, value), b.select(take, at, index)]


def plane_positions(b: Builder, shape: Sequence[int], spatial: int) -> Value:
    """int32 tensor of `shape` in which each element holds its row-major position within the last `spatial` dims."""
    sizes = tuple(shape[len(shape) - spatial :])
    flat = b.reshape(b.iota((math.prod(sizes),), 0, torch.int32), sizes)
    return b.broadcast(flat, shape, range(len(shape) - spatial, len(shape)))


NO_POSITION = 2**31 - 1
"""Index of what is padding: any real position comes before it."""


@lowering(aten.max_pool2d_with_indices.default)
def max_pool2d(b: Builder, x: Value, *arguments: Any, **named: Any) -> tuple[Value, Value | None]:
    return _max_pool(b, x, 2, *arguments, **named)


@lowering(aten.max_pool3d_with_indices.default)
def max_pool3d(b: Builder, x: Value, *arguments: Any, **named: Any) -> tuple[Value, Value | None]:
    return _max_pool(b, x, 3, *arguments, **named)


def _max_pool(
    b: Builder,
    x: Value,
    spatial: int,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value | None]:
    """Largest element of each window, and its position in the unpadded plane."""
    shape = b.out.shape
    pool = Pool.make(spatial, x.shape, shape, kernel, stride, padding, dilation)
    lead = x.ndim - spatial
    if not math.prod(shape):
        return b.full(shape, 0, x.dtype), b.full(shape, 0, torch.int64)
    if not b.used[1]:
        return reduce_window(b, x, "max", lowest(x.dtype), **pool.windows(lead)), None
    windows = pool.windows(lead)
    positions = plane_positions(b, x.shape, spatial)
    if "reduce.variadic" not in b.target.ops:
        dilation = windows.pop("window_dilation")
        identities = [lowest(x.dtype), NO_POSITION]
        values, indices = fold_windows(b, [x, positions], identities, functools.partial(pick_larger, b), dilation=dilation, **windows)
        return values, b.convert(indices, torch.int64)
    attributes = {
        "window_dimensions": mlir.i64s(windows["window"]),
        "window_strides": mlir.i64s(windows["strides"]),
        "window_dilations": mlir.i64s(windows["window_dilation"]),
        "padding": mlir.pairs(windows["padding"]),
    }
    inits = [b.scalar(lowest(x.dtype), x.dtype), b.scalar(NO_POSITION, torch.int32)]
    kinds = [x.dtype, torch.int32]
    op = b.op("reduce_window", [x, positions, *inits], [(shape, d) for d in kinds], attributes, regions=1)
    with b.region(op, 0, [((), d) for d in kinds * 2]) as arguments:
        b.ret(*pick_larger(b, arguments[:2], arguments[2:]))
    values, indices = (Value(r, shape, d) for r, d in zip(op.results, kinds, strict=True))
    return values, b.convert(indices, torch.int64)


@lowering(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(b: Builder, grad: Value, x: Value, *window: Any) -> Value:
    """Adds each element of grad at the position that its window's maximum came from: the last argument."""
    return add_at_positions(b, grad, window[-1], x.shape, 2)


@lowering(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(b: Builder, grad: Value, x: Value, *window: Any) -> Value:
    """Adds each element of grad at the position that its window's maximum came from: the last argument."""
    return add_at_positions(b, grad, window[-1], x.shape, 3)


def add_at_positions(b: Builder, grad: Value, indices: Value, shape: Sequence[int], spatial: int) -> Value:
    """Zeros of `shape`, with grad's elements added at `indices`, positions within the last `spatial` dims."""
    count, dtype = math.prod(shape), compute_dtype(grad.dtype)
    if not grad.numel or not count:
        return b.full(shape, 0, grad.dtype)
    plane = math.prod(shape[len(shape) - spatial :])
    planes = count // plane
    kind = torch.int32 if count < 2**31 else torch.int64
    flat = b.convert(b.reshape(indices, (planes, grad.numel // planes)), kind)
    if planes > 1:
        flat = b.add(flat, b.mul(b.iota(flat.shape, 0, kind), b.like(flat, plane)))
    sums = scatter(
        b,
        b.full((count,), 0, dtype),
        b.reshape(flat, (grad.numel, 1)),
        b.convert(b.reshape(grad, (grad.numel,)), dtype),
        "add",
        window_dims=(),
        inserted=(0,),
        index_map=(0,),
    )
    return b.convert(b.reshape(sums, shape), grad.dtype)


# Average


def _divisor(b: Builder, pool: Pool, shape: Sequence[int], dtype: torch.dtype, include_pad: bool, override: int | None) -> Value:
    """What each window's sum is divided by, as a tensor of `shape`: a splat wherever all windows have the same size."""
    if override is not None:
        return b.full(shape, override, dtype)
    common, varying = 1, []
    for d, (n, out, k, s, p) in enumerate(zip(pool.sizes, pool.outs, pool.kernel, pool.stride, pool.padding, strict=True)):
        starts = np.arange(out) * s - p
        ends = np.minimum(starts + k, n + p)
        counts = ends - starts if include_pad else np.minimum(ends, n) - np.maximum(starts, 0)
        if (counts == counts[0]).all():
            common *= int(counts[0])
        else:
            varying.append((len(shape) - pool.spatial + d, counts))
    result = None
    for d, counts in varying:
        factor = b.literal(counts.astype(np.float64).astype(mlir.numpy_dtype(dtype)), dtype)
        if result is None and common != 1:
            factor = b.mul(factor, b.like(factor, common))
        factor = b.broadcast(factor, shape, (d,))
        result = factor if result is None else b.mul(result, factor)
    return b.full(shape, common, dtype) if result is None else result


@lowering(aten.avg_pool1d.default)
def avg_pool1d(b: Builder, x: Value, *arguments: Any, **named: Any) -> Value:
    return _avg_pool(b, x, 1, *arguments, **named)


@lowering(aten.avg_pool2d.default)
def avg_pool2d(b: Builder, x: Value, *arguments: Any, **named: Any) -> Value:
    return _avg_pool(b, x, 2, *arguments, **named)


@lowering(aten.avg_pool3d.default)
def avg_pool3d(b: Builder, x: Value, *arguments: Any, **named: Any) -> Value:
    return _avg_pool(b, x, 3, *arguments, **named)


def _avg_pool(
    b: Builder,
    x: Value,
    spatial: int,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """Sum of each window over its size (with or without padding) or over divisor_override."""
    shape, dtype = b.out.shape, compute_dtype(x.dtype)
    if not math.prod(shape):
        return b.full(shape, 0, x.dtype)
    pool = Pool.make(spatial, x.shape, shape, kernel, stride, padding)
    sums = reduce_window(b, b.convert(x, dtype), "add", 0, **pool.windows(x.ndim - pool.spatial))
    return b.convert(b.div(sums, _divisor(b, pool, shape, dtype, count_include_pad, divisor_override)), x.dtype)


@lowering(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(b: Builder, grad: Value, x: Value, *arguments: Any) -> Value:
    return _avg_pool_backward(b, grad, x, 2, *arguments)


@lowering(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(b: Builder, grad: Value, x: Value, *arguments: Any) -> Value:
    return _avg_pool_backward(b, grad, x, 3, *arguments)


def _avg_pool_backward(
    b: Builder,
    grad: Value,
    x: Value,
    spatial: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """Each element of grad over its window's size, added to all elements of the window: a sum over windows of the dilated grad."""
    if not grad.numel or not x.numel:
        return b.full(x.shape, 0, x.dtype)
    dtype = compute_dtype(grad.dtype)
    pool = Pool.make(spatial, x.shape, grad.shape, kernel, stride, padding)
    grad = b.convert(grad, dtype)
    share = b.div(grad, _divisor(b, pool, grad.shape, dtype, count_include_pad, divisor_override))
    return b.convert(sum_of_covering(b, share, pool), x.dtype)


def sum_of_covering(b: Builder, share: Value, pool: Pool) -> Value:
    """For each position of the plane, the sum of `share` over the windows that cover it."""
    lead = share.ndim - pool.spatial
    parts = list(zip(pool.sizes, pool.outs, pool.kernel, pool.stride, pool.padding, strict=True))
    if all(k == s and p == 0 and out * k == n for n, out, k, s, p in parts):
        return _repeat_each(b, share, pool.kernel, lead)
    ones = [1] * lead
    padding = [(0, 0)] * lead
    for n, out, k, s, p in parts:
        low = k - 1 - p
        padding.append((low, n + k - 1 - low - ((out - 1) * s + 1)))
    if all(lo >= 0 and hi >= 0 for lo, hi in padding):
        return reduce_window(
            b, share, "add", 0, window=[*ones, *pool.kernel], strides=[1] * share.ndim, padding=padding, base_dilation=[*ones, *pool.stride]
        )
    interior = [0] * lead + [s - 1 for s in pool.stride]
    wide = b.pad(share, 0, [low for low, _ in padding], [high for _, high in padding], interior)
    return reduce_window(b, wide, "add", 0, window=[*ones, *pool.kernel], strides=[1] * share.ndim, padding=[(0, 0)] * share.ndim)


def _repeat_each(b: Builder, x: Value, times: Sequence[int], lead: int) -> Value:
    """Each element of spatial dim i, `times[i]` times over."""
    split, dims, shape = list(x.shape[:lead]), list(range(lead)), list(x.shape[:lead])
    for n, k in zip(x.shape[lead:], times, strict=True):
        dims.append(len(split))
        split += [n, k]
        shape.append(n * k)
    return b.reshape(b.broadcast(x, split, dims), shape)
