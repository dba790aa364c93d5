"""Parts and copies of a tensor in regular patterns: triangles, diagonals, windows, strided views, roll, repeat.

Definitions: the ATen schemas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.ops.indexing import along, index_dtype
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import gather, scatter

aten = torch.ops.aten


# Triangles


def _triangle(b: Builder, x: Value, direction: str, diagonal: int) -> Value:
    rows, columns = (b.iota(x.shape[-2:], d, torch.int32) for d in range(2))
    if diagonal:
        rows = b.add(rows, b.like(rows, max(-(2**30), min(diagonal, 2**30))))
    return b.select(b.expand(b.compare(direction, rows, columns), x.shape), x, b.like(x, 0))


@lowering(aten.tril.default)
def tril(b: Builder, x: Value, diagonal: int = 0) -> Value:
    """Zero above the diagonal."""
    return _triangle(b, x, "GE", diagonal)


@lowering(aten.triu.default)
def triu(b: Builder, x: Value, diagonal: int = 0) -> Value:
    """Zero below the diagonal."""
    return _triangle(b, x, "LE", diagonal)


# Diagonals


def _last(b: Builder, x: Value, first: int, second: int) -> tuple[Value, list[int]]:
    """x with dims first and second moved to the end, and the permutation that did it."""
    order = [d for d in range(x.ndim) if d not in (first, second)] + [first, second]
    return b.transpose(x, order), order


def _inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(d) for d in range(len(order))]


@lowering(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """A diagonal of dims dim1 and dim2, as the last dim: every (columns + 1)-th element of the flattened matrix."""
    matrix, _ = _last(b, x, dim1 % x.ndim, dim2 % x.ndim)
    *lead, rows, columns = matrix.shape
    length = b.out.shape[-1]
    if not length or not math.prod(lead):
        return b.full(b.out.shape, 0, x.dtype)
    start = offset if offset >= 0 else -offset * columns
    flat = b.reshape(matrix, (*lead, rows * columns))
    return b.slice_dim(flat, len(lead), start, start + (length - 1) * (columns + 1) + 1, columns + 1)


def _write_diagonal(b: Builder, matrix: Value, source: Value, offset: int) -> Value:
    """matrix [..., rows, columns] with source [..., length] as a diagonal."""
    length = source.shape[-1]
    if not length or not matrix.numel:
        return matrix
    rows, columns = (b.iota(matrix.shape[-2:], d, torch.int32) for d in range(2))
    here = b.compare("EQ", b.add(rows, b.like(rows, offset)), columns)
    low = max(-offset, 0)
    zeros = [0] * (source.ndim - 1)
    by_row = b.pad(source, 0, [*zeros, low], [*zeros, matrix.shape[-2] - length - low])
    return b.select(b.expand(here, matrix.shape), b.broadcast(by_row, matrix.shape, range(source.ndim)), matrix)


@lowering(aten.diagonal_scatter.default)
def diagonal_scatter(b: Builder, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """x with source written on a diagonal."""
    matrix, order = _last(b, x, dim1 % x.ndim, dim2 % x.ndim)
    return b.transpose(_write_diagonal(b, matrix, b.convert(source, x.dtype), offset), _inverse(order))


@lowering(aten.diagonal_backward.default)
def diagonal_backward(b: Builder, grad: Value, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Value:
    """Zeros of `sizes` with grad on a diagonal."""
    return diagonal_scatter(b, b.full(sizes, 0, grad.dtype), grad, offset, dim1, dim2)


# Strided views


_NOT_DENSE = "as_strided reads the memory of a tensor that is not laid out densely in row-major order, or more than the tensor has of it"


def _covers(x: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> str | None:
    last = (storage_offset or 0) + sum((n - 1) * step for n, step in zip(size, stride, strict=True) if n)
    dense = x.is_contiguous() and x.storage_offset() == 0 and (0 in size or last < x.numel())
    return None if dense else _NOT_DENSE


def _covers_source(x: Any, source: Any, *view: Any, **named: Any) -> str | None:
    return _covers(x, *view, **named)


def _offsets(b: Builder, size: Sequence[int], stride: Sequence[int], start: int, count: int) -> Value:
    """Position in the flat base of each element of a strided view."""
    kind = index_dtype(count)
    result = b.full(size, start, kind)
    for d, step in enumerate(stride):
        if step and size[d] > 1:
            term = b.iota((size[d],), 0, kind)
            term = term if step == 1 else b.mul(term, b.like(term, step))
            result = b.add(result, b.broadcast(term, size, (d,)))
    return result


def _is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for n, step in zip(reversed(size), reversed(stride), strict=True):
        if n != 1 and step != expected:
            return False
        expected *= n
    return True


@lowering(aten.as_strided.default, aten.as_strided_copy.default, guard=_covers)
def as_strided(b: Builder, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Value:
    """The elements of x's memory, which must be dense, at storage_offset + sum(index * stride)."""
    count, start = math.prod(size), storage_offset or 0
    if not count:
        return b.full(size, 0, x.dtype)
    flat = b.reshape(x, (x.numel,))
    if _is_dense(size, stride):
        return b.reshape(b.slice_dim(flat, 0, start, start + count), size)
    at = b.unsqueeze(_offsets(b, size, stride, start, x.numel), len(size))
    return gather(b, flat, at, offset_dims=[], collapsed=[0], index_map=[0], slice_sizes=[1], shape=size)


@lowering(aten.as_strided_scatter.default, guard=_covers_source)
def as_strided_scatter(
    b: Builder, x: Value, source: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    """x with source written where `as_strided` would read."""
    if not source.numel:
        return x
    start, flat = storage_offset or 0, b.reshape(x, (x.numel,))
    if _is_dense(size, stride):
        end = start + source.numel
        row = b.reshape(b.convert(source, x.dtype), (source.numel,))
        around = [b.slice_dim(flat, 0, 0, start), row, b.slice_dim(flat, 0, end, x.numel)]
        return b.reshape(b.concat([part for part in around if part.numel], 0), x.shape)
    at = b.unsqueeze(_offsets(b, size, stride, start, x.numel), len(size))
    written = scatter(b, flat, at, b.convert(source, x.dtype), "second", window_dims=[], inserted=[0], index_map=[0])
    return b.reshape(written, x.shape)


@lowering(aten.unfold.default, aten.unfold_copy.default)
def unfold(b: Builder, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of `size` every `step` along dim: their number stays there, the place in the window becomes the last dim."""
    if x.ndim == 0:
        return b.reshape(x, b.out.shape) if size else b.full(b.out.shape, 0, x.dtype)
    dim = along(dim, x.ndim)
    shape = b.out.shape
    if not math.prod(shape):
        return b.full(shape, 0, x.dtype)
    count = shape[dim]
    if step >= size:
        # Windows do not overlap: a reshape of x, cut or padded to whole steps.
        edge = [count * step - x.shape[dim] if d == dim else 0 for d in range(x.ndim)]
        whole = b.pad(x, 0, [0] * x.ndim, edge)
        split = b.reshape(whole, (*x.shape[:dim], count, step, *x.shape[dim + 1 :]))
        return b.move(b.slice_dim(split, dim + 1, 0, size), dim + 1, x.ndim)
    starts = b.iota((count, 1), 0, torch.int32)
    if step > 1:
        starts = b.mul(starts, b.like(starts, step))
    sizes = [size if d == dim else n for d, n in enumerate(x.shape)]
    ordered = [d if d < dim else d + 1 for d in range(x.ndim)]
    middle = (*x.shape[:dim], count, size, *x.shape[dim + 1 :])
    taken = gather(b, x, starts, offset_dims=ordered, collapsed=[], index_map=[dim], slice_sizes=sizes, shape=middle)
    return b.move(taken, dim + 1, x.ndim)


# Copies


@lowering(aten.roll.default)
def roll(b: Builder, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """Elements moved by `shifts` along dims, or along the flattened tensor; what leaves at the end comes in at the start."""
    if not x.numel:
        return x
    if not dims:
        flat = b.reshape(x, (x.numel,))
        return b.reshape(roll(b, flat, shifts, (0,)), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        dim = along(dim, x.ndim)
        if x.ndim and (split := -shift % x.shape[dim]):
            x = b.concat([b.slice_dim(x, dim, split, x.shape[dim]), b.slice_dim(x, dim, 0, split)], dim)
    return x


@lowering(aten.repeat.default)
def repeat(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    """x side by side, repeats[i] times along dim i; new dims come in front."""
    sizes = [1] * (len(repeats) - x.ndim) + list(x.shape)
    split: list[int] = []
    dims = []
    for d, (times, n) in enumerate(zip(repeats, sizes, strict=True)):
        if d >= len(repeats) - x.ndim:
            dims.append(len(split) + 1)
        split += [times, n]
    return b.reshape(b.broadcast(x, split, dims), b.out.shape)
