"""Reading and writing at integer indices along several dims or one: index, index_put, index_select, gather, take, embedding.

Definitions: the ATen schemas. PyTorch raises on an index out of range; here, as in XLA, a read is clamped into range and a write
is dropped. Negative indices count from the end wherever PyTorch lets them. Sums into float16 and bfloat16 are made in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.ops.cumulative import scan
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import gather as emit_gather
from neuron_dynamo.lowering.structured import scatter

aten = torch.ops.aten


def index_dtype(size: int) -> torch.dtype:
    """The narrowest of int32 and int64 that can count `size` elements: XLA computes addresses faster in int32."""
    return torch.int32 if size < 2**31 else torch.int64


def narrow(b: Builder, index: Value, size: int) -> Value:
    """index in `index_dtype(size)`."""
    return b.convert(index, index_dtype(size))


def wrap(b: Builder, index: Value, size: int) -> Value:
    """Indices into a dim of `size`, with the negative ones counted from its end, in `index_dtype(size)`."""
    index = narrow(b, index, size)
    negative = b.compare("LT", index, b.like(index, 0))
    return b.select(negative, b.add(index, b.like(index, size)), index)


def along(dim: int, rank: int) -> int:
    """dim as a non-negative one; 0-d tensors count as 1-d."""
    return dim % max(rank, 1)


def accumulate_into(b: Builder, x: Value, body: Any) -> Value:
    """body(x) with x in the dtype in which sums are made, converted back."""
    return b.convert(body(b.convert(x, compute_dtype(x.dtype))), x.dtype)


# Many dims at once


def _only_integers(x: Any, indices: Sequence[Any], *_: Any, **__: Any) -> str | None:
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            return "a boolean index has a result whose size depends on data"
    return None


class _Pattern:
    """Which dims of x the index tensors of aten::index take, their joint shape, and where it lies in the result."""

    def __init__(self, b: Builder, x: Value, indices: Sequence[Value | None]) -> None:
        given = [(d, index) for d, index in enumerate(indices) if index is not None]
        self.dims = [d for d, _ in given]
        self.shape = np.broadcast_shapes(*(index.shape for _, index in given))
        contiguous = self.dims == list(range(self.dims[0], self.dims[0] + len(self.dims)))
        self.position = self.dims[0] if contiguous else 0
        self.rest = [d for d in range(x.ndim) if d not in self.dims]
        sizes = [x.shape[d] for d in self.rest]
        self.result = (*sizes[: self.position], *self.shape, *sizes[self.position :])
        self.offsets = [i if i < self.position else i + len(self.shape) for i in range(len(sizes))]
        parts = [b.unsqueeze(b.expand(wrap(b, index, x.shape[d]), self.shape), len(self.shape)) for d, index in given]
        widest = torch.int64 if any(part.dtype == torch.int64 for part in parts) else torch.int32
        self.starts = b.concat([b.convert(part, widest) for part in parts], len(self.shape))


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor, guard=_only_integers)
def index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """x at the broadcast index tensors; dims without an index are kept whole."""
    if not math.prod(b.out.shape):
        return b.full(b.out.shape, 0, x.dtype)
    if all(index is None for index in indices):
        return x
    pattern = _Pattern(b, x, indices)
    sizes = [1 if d in pattern.dims else n for d, n in enumerate(x.shape)]
    return emit_gather(
        b,
        x,
        pattern.starts,
        offset_dims=pattern.offsets,
        collapsed=pattern.dims,
        index_map=pattern.dims,
        slice_sizes=sizes,
        shape=pattern.result,
    )


def _writable(x: Any, indices: Sequence[Any], values: Any, *_: Any, **__: Any) -> str | None:
    kinds = [index.dtype for index in indices if index is not None]
    if len(kinds) > 1 and any(kind in (torch.bool, torch.uint8) for kind in kinds):
        return "a boolean index besides other indices selects places whose number depends on data"
    return None


@lowering(aten.index_put.default, aten._unsafe_index_put.default, guard=_writable)
def index_put(b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    """x with `values` (broadcast) written at the index tensors, or added there."""
    if not x.numel:
        return x
    if all(index is None for index in indices):
        values = b.expand(b.convert(values, x.dtype), x.shape)
        return b.add(x, values) if accumulate else values
    (first, *_) = [index for index in indices if index is not None]
    if first.dtype in (torch.bool, torch.uint8):
        return _masked_put(b, x, list(indices).index(first), b.convert(first, torch.bool), values, accumulate)
    pattern = _Pattern(b, x, indices)
    if not math.prod(pattern.result):
        return x

    def write(x: Value) -> Value:
        kind = ("or" if x.dtype == torch.bool else "add") if accumulate else "second"
        return scatter(
            b,
            x,
            pattern.starts,
            b.expand(b.convert(values, x.dtype), pattern.result),
            kind,
            window_dims=pattern.offsets,
            inserted=pattern.dims,
            index_map=pattern.dims,
        )

    return accumulate_into(b, x, write) if accumulate else write(x)


def _masked_put(b: Builder, x: Value, dim: int, mask: Value, values: Value, accumulate: bool) -> Value:
    """x with values written where mask, which covers x's dims from `dim` on, holds.

    values [count, rest...] (broadcast) go to the true places in their order: values[i] to the i-th. Where there is but one,
    no counting is needed.
    """
    values = b.convert(values, x.dtype)
    rest = (*x.shape[:dim], *x.shape[dim + mask.ndim :])
    covered = range(dim, dim + mask.ndim)
    others = [d for d in range(x.ndim) if d not in covered]
    # values line up with (dims before, count, dims behind).
    position = dim
    lined = (*rest[:position], 1, *rest[position:])
    full = (1,) * (len(lined) - values.ndim) + values.shape
    count = full[position]
    if count == 1:
        placed = b.broadcast(b.reshape(b.expand(b.reshape(values, full), lined), rest), x.shape, others)
    else:
        values = b.expand(b.reshape(values, full), (*rest[:position], count, *rest[position:]))
        order = b.reshape(running_count(b, b.reshape(mask, (mask.numel,))), mask.shape)
        placed = take_slices(b, values, position, b.sub(order, b.like(order, 1)))
    if accumulate:
        placed = b.binary("or", x, placed) if x.dtype == torch.bool else b.add(x, placed)
    return b.select(b.broadcast(mask, x.shape, covered), placed, x)


def running_count(b: Builder, marks: Value) -> Value:
    """Inclusive cumulative sum of 1-d marks (bool or integers), int32."""
    return scan(b, b.convert(marks, torch.int32), 0, "add")


# One dim, whole slices


def take_slices(b: Builder, x: Value, dim: int, index: Value) -> Value:
    """x with dim `dim` replaced by the dims of `index`, each entry of which picks a slice."""
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    if not math.prod(shape):
        return b.full(shape, 0, x.dtype)
    offsets = [d if d < dim else d - 1 + index.ndim for d in range(x.ndim) if d != dim]
    sizes = [1 if d == dim else n for d, n in enumerate(x.shape)]
    starts = b.unsqueeze(narrow(b, index, x.shape[dim]), index.ndim)
    return emit_gather(b, x, starts, offset_dims=offsets, collapsed=[dim], index_map=[dim], slice_sizes=sizes, shape=shape)


def write_slices(b: Builder, x: Value, dim: int, index: Value, source: Value, kind: str, unique: bool = False) -> Value:
    """Combine source's slices along `dim` into those of x that the 1-d `index` names; x and source have one dtype."""
    if not source.numel or not x.numel:
        return x
    window = [d for d in range(x.ndim) if d != dim]
    starts = b.unsqueeze(narrow(b, index, x.shape[dim]), 1)
    return scatter(b, x, starts, source, kind, window_dims=window, inserted=[dim], index_map=[dim], unique=unique)


def _at_least_1d(b: Builder, x: Value) -> Value:
    return b.reshape(x, (1,)) if x.ndim == 0 else x


@lowering(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    taken = take_slices(b, _at_least_1d(b, x), along(dim, x.ndim), _at_least_1d(b, index))
    return b.reshape(taken, b.out.shape)


@lowering(aten.index_add.default)
def index_add(b: Builder, x: Value, dim: int, index: Value, source: Value, alpha: Scalar = 1) -> Value:
    """x with alpha * source's slices added at `index`."""
    dim = along(dim, x.ndim)
    whole, index = _at_least_1d(b, x), _at_least_1d(b, index)
    source = _slices_of(b, source, whole, dim, index)

    def write(x: Value) -> Value:
        terms = b.convert(source, x.dtype)
        if alpha != 1:
            terms = b.mul(terms, b.like(terms, alpha))
        return write_slices(b, x, dim, index, terms, "or" if x.dtype == torch.bool else "add")

    return b.reshape(accumulate_into(b, whole, write), x.shape)


@lowering(aten.index_copy.default)
def index_copy(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    """x with source's slices written at `index`."""
    dim = along(dim, x.ndim)
    whole, index = _at_least_1d(b, x), _at_least_1d(b, index)
    source = b.convert(_slices_of(b, source, whole, dim, index), x.dtype)
    return b.reshape(write_slices(b, whole, dim, index, source, "second"), x.shape)


def _slices_of(b: Builder, source: Value, x: Value, dim: int, index: Value) -> Value:
    """source as slices along `dim` of a tensor like x: it may lack that dim where there is one slice."""
    return b.reshape(source, (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]))


@lowering(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(b: Builder, x: Value, dim: int, index: Value, value: Value | Scalar) -> Value:
    """x with `value` in all slices that `index` names."""
    dim = along(dim, x.ndim)
    whole, index = _at_least_1d(b, x), _at_least_1d(b, index)
    shape = (*whole.shape[:dim], index.shape[0], *whole.shape[dim + 1 :])
    filled = write_slices(b, whole, dim, wrap(b, index, whole.shape[dim]), b.value(value, x.dtype, shape), "second")
    return b.reshape(filled, x.shape)


@lowering(aten.take.default)
def take(b: Builder, x: Value, index: Value) -> Value:
    """x, flattened, at `index`."""
    return take_slices(b, b.reshape(x, (x.numel,)), 0, wrap(b, index, x.numel))


@lowering(aten.put.default)
def put(b: Builder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """x with source's elements written, or added, at `index` of the flattened x."""
    flat = b.reshape(x, (x.numel,))
    index = wrap(b, b.reshape(index, (index.numel,)), x.numel)
    source = b.reshape(source, (source.numel,))

    def write(x: Value) -> Value:
        return write_slices(b, x, 0, index, b.convert(source, x.dtype), "add" if accumulate else "second")

    return b.reshape(accumulate_into(b, flat, write) if accumulate else write(flat), x.shape)


# One dim, element by element


@lowering(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """result[i, j, k] = x[index[i, j, k], j, k] for dim 0, and so on."""
    shape = index.shape
    if not index.numel:
        return b.full(shape, 0, x.dtype)
    dim = along(dim, x.ndim)
    x, index = _at_least_1d(b, x), _at_least_1d(b, index)
    limits = [n if d == dim else m for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))]
    x = b.slice(x, [0] * x.ndim, limits)
    batch = [d for d in range(x.ndim) if d != dim]
    taken = emit_gather(
        b,
        x,
        b.unsqueeze(narrow(b, index, x.shape[dim]), index.ndim),
        offset_dims=[],
        collapsed=[dim],
        index_map=[dim],
        slice_sizes=[1] * x.ndim,
        shape=index.shape,
        operand_batching=batch,
        indices_batching=batch,
    )
    return b.reshape(taken, shape)
