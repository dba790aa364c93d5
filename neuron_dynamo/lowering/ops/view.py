"""Shape-only ops: views, permutations, slices, concatenation, padding, creation. Semantics follow the ATen schemas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.registry import lowering

aten = torch.ops.aten
prims = torch.ops.prims


@lowering(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(b: Builder, x: Value, size: Sequence[int]) -> Value:
    return b.reshape(x, b.out.shape)


@lowering(
    aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.flatten.using_ints, prims.split_dim.default
)
def reshape_only(b: Builder, x: Value, *_: Any) -> Value:
    return b.reshape(x, b.out.shape)


@lowering(aten.permute.default)
def permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.transpose(x, [d % x.ndim for d in dims])


@lowering(aten.transpose.int)
def transpose(b: Builder, x: Value, first: int, second: int) -> Value:
    if x.ndim == 0:
        return x
    dims = list(range(x.ndim))
    dims[first], dims[second] = dims[second], dims[first]
    return b.transpose(x, dims)


@lowering(aten.t.default)
def t(b: Builder, x: Value) -> Value:
    return b.transpose(x, (1, 0)) if x.ndim == 2 else x


@lowering(aten.expand.default)
def expand(b: Builder, x: Value, size: Sequence[int], implicit: bool = False) -> Value:
    return b.expand(x, b.out.shape)


@lowering(aten.slice.Tensor)
def slice_tensor(b: Builder, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    dim %= x.ndim
    first, last = clamp_range(x.shape[dim], start, end)
    return b.slice_dim(x, dim, first, last, step)


def clamp_range(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Python slice bounds for a dim of `size`: negatives wrap, then both are clamped, and end is not below start."""
    first = 0 if start is None else start
    last = size if end is None else end
    first = min(max(first + size if first < 0 else first, 0), size)
    last = min(max(last + size if last < 0 else last, first), size)
    return first, last


@lowering(aten.select.int)
def select(b: Builder, x: Value, dim: int, index: int) -> Value:
    dim %= x.ndim
    index = index + x.shape[dim] if index < 0 else index
    return b.reshape(b.slice_dim(x, dim, index, index + 1), b.out.shape)


@lowering(aten.slice_scatter.default)
def slice_scatter(
    b: Builder, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    dim %= x.ndim
    first, last = clamp_range(x.shape[dim], start, end)
    source = b.convert(source, x.dtype)
    if last == first:
        return x
    count = source.shape[dim]
    source = b.expand(source, (*x.shape[:dim], count, *x.shape[dim + 1 :]))
    if step == 1:
        parts = [b.slice_dim(x, dim, 0, first), source, b.slice_dim(x, dim, last, x.shape[dim])]
        return b.concat([p for p in parts if p.shape[dim]], dim)
    low, high, interior = [0] * x.ndim, [0] * x.ndim, [0] * x.ndim
    low[dim], interior[dim] = first, step - 1
    high[dim] = x.shape[dim] - first - ((count - 1) * step + 1)
    written = b.pad(b.full(source.shape, True, torch.bool), False, low, high, interior)
    return b.select(written, b.pad(source, 0, low, high, interior), x)


@lowering(aten.select_scatter.default)
def select_scatter(b: Builder, x: Value, source: Value, dim: int, index: int) -> Value:
    dim %= x.ndim
    index = index + x.shape[dim] if index < 0 else index
    source = b.reshape(b.expand(source, (*x.shape[:dim], *x.shape[dim + 1 :])), (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    return slice_scatter(b, x, source, dim, index, index + 1)


@lowering(aten.slice_backward.default)
def slice_backward(b: Builder, grad: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Value:
    dim %= len(sizes)
    first, _ = clamp_range(sizes[dim], start, end)
    count = grad.shape[dim]
    if count == 0:
        return b.full(sizes, 0, grad.dtype)
    low, high, interior = [0] * grad.ndim, [0] * grad.ndim, [0] * grad.ndim
    low[dim], interior[dim] = first, step - 1
    high[dim] = sizes[dim] - first - ((count - 1) * step + 1)
    return b.pad(grad, 0, low, high, interior)


@lowering(aten.select_backward.default)
def select_backward(b: Builder, grad: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    dim %= len(sizes)
    index = index + sizes[dim] if index < 0 else index
    return slice_backward(b, b.unsqueeze(grad, dim), sizes, dim, index, index + 1, 1)


@lowering(aten.cat.default)
def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    # 1-d empty tensors are skipped whatever the rank of the rest: legacy, and still PyTorch's rule.
    parts = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    return b.concat([b.convert(x, b.out.dtype) for x in parts], dim % parts[0].ndim)


@lowering(aten.stack.default)
def stack(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim %= tensors[0].ndim + 1
    return b.concat([b.unsqueeze(b.convert(x, b.out.dtype), dim) for x in tensors], dim)


@lowering(aten.split_with_sizes.default)
def split_with_sizes(b: Builder, x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    dim %= x.ndim
    parts, at = [], 0
    for size in sizes:
        parts.append(b.slice_dim(x, dim, at, at + size))
        at += size
    return tuple(parts)


@lowering(aten.split.Tensor)
def split(b: Builder, x: Value, size: int, dim: int = 0) -> tuple[Value, ...]:
    length = x.shape[dim % x.ndim]
    if length == 0 or size == 0:
        return (x,)
    return split_with_sizes(b, x, [min(size, length - at) for at in range(0, length, size)], dim)


@lowering(aten.unbind.int)
def unbind(b: Builder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    dim %= x.ndim
    rest = (*x.shape[:dim], *x.shape[dim + 1 :])
    return tuple(b.reshape(b.slice_dim(x, dim, i, i + 1), rest) for i in range(x.shape[dim]))


@lowering(aten.flip.default)
def flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.reverse(x, sorted({d % x.ndim for d in dims})) if x.ndim else x


@lowering(aten.constant_pad_nd.default)
def constant_pad_nd(b: Builder, x: Value, pad: Sequence[int], value: Scalar = 0) -> Value:
    low, high = [0] * x.ndim, [0] * x.ndim
    for i in range(len(pad) // 2):
        low[-1 - i], high[-1 - i] = pad[2 * i], pad[2 * i + 1]
    return b.pad(x, value, low, high)


# Creation


@lowering(aten.full.default, aten.full_like.default)
def full(b: Builder, _: Any, value: Scalar, *__: Any, **___: Any) -> Value:
    return b.full(b.out.shape, value, b.out.dtype)


@lowering(aten.new_full.default)
def new_full(b: Builder, _: Value, size: Sequence[int], value: Scalar, **__: Any) -> Value:
    return b.full(b.out.shape, value, b.out.dtype)


@lowering(
    aten.zeros.default,
    aten._efficientzerotensor.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten._new_zeros_with_same_feature_meta.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten.empty_permuted.default,
)
def zeros(b: Builder, *_: Any, **__: Any) -> Value:
    return b.full(b.out.shape, 0, b.out.dtype)


@lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, *_: Any, **__: Any) -> Value:
    return b.full(b.out.shape, 1, b.out.dtype)


@lowering(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, value: Scalar, **_: Any) -> Value:
    return b.scalar(value, b.out.dtype)


@lowering(aten.fill.Scalar, aten.fill.Tensor)
def fill(b: Builder, x: Value, value: Value | Scalar) -> Value:
    return b.value(value, b.out.dtype, b.out.shape)


@lowering(prims.iota.default)
def iota(b: Builder, length: int, *, start: int, step: int, dtype: torch.dtype, **_: Any) -> Value:
    return _sequence(b, length, start, step, dtype)


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(b: Builder, *bounds: Scalar, **_: Any) -> Value:
    """Element i is start + i * step, computed in int64 for integer bounds and in double otherwise, then converted: ATen's kernel.
    For an integer result it truncates the bounds first."""
    start, step = (0, 1) if len(bounds) == 1 else (bounds[0], bounds[2] if len(bounds) > 2 else 1)
    if not b.out.dtype.is_floating_point:
        start, step = int(start.real), int(step.real)
    if all(isinstance(v, int) for v in (start, step)):
        return _sequence(b, b.out.shape[0], start, step, b.out.dtype)
    wide = torch.float64 if torch.float64 in b.target.dtypes else torch.float32
    steps = b.mul(b.iota(b.out.shape, 0, wide), b.full(b.out.shape, step, wide))
    return b.convert(b.add(steps, b.full(b.out.shape, start, wide)), b.out.dtype)


def _sequence(b: Builder, length: int, start: Scalar, step: Scalar, dtype: torch.dtype) -> Value:
    kind = torch.int64 if not dtype.is_floating_point else dtype
    if dtype.is_floating_point and dtype.itemsize < 4:
        kind = torch.float32
    result = b.iota((length,), 0, kind)
    if step != 1:
        result = b.mul(result, b.like(result, step))
    if start != 0:
        result = b.add(result, b.like(result, start))
    return b.convert(result, dtype)


def _bits_guard(x: torch.Tensor, dtype: torch.dtype) -> str | None:
    if x.is_complex() or dtype.is_complex:
        return "the bits of a complex number"
    return "the byte of a bool" if torch.bool in (x.dtype, dtype) else None


@lowering(aten.view.dtype, guard=_bits_guard)
def view_bits(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    """The same bytes as elements of another type: wider ones take several of the last dim, little end first."""
    if x.dtype == dtype:
        return x
    old, new = x.dtype.itemsize, dtype.itemsize
    if new > old:
        x = b.reshape(x, (*b.out.shape, new // old))
    shape = (*x.shape, old // new) if new < old else b.out.shape
    return b.reshape(b.emit("bitcast_convert", [x], shape, dtype), b.out.shape)
