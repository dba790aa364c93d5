"""Embedding tables: rows by index, bags of rows, and their gradients. Definitions: aten::embedding, aten::_embedding_bag.

Indices out of range, on which PyTorch raises, read the nearest row and contribute to no gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.ops.indexing import index_dtype, narrow, running_count, take_slices, write_slices
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import lowest, reduce, scatter, total

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2


@lowering(aten.embedding.default)
def embedding(b: Builder, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    """Rows of weight [count, width] by indices of any shape."""
    return take_slices(b, weight, 0, indices)


@lowering(aten.embedding_dense_backward.default)
def embedding_dense_backward(b: Builder, grad: Value, indices: Value, count: int, padding_idx: int, scale_grad_by_freq: bool) -> Value:
    """Gradient [count, width] of the table: rows of grad summed by index; row padding_idx gets none."""
    width = grad.shape[-1]
    flat = b.reshape(grad, (indices.numel, width))
    return b.convert(_sum_rows(b, flat, b.reshape(indices, (indices.numel,)), count, padding_idx, scale_grad_by_freq), grad.dtype)


def _sum_rows(b: Builder, rows: Value, index: Value, count: int, padding_idx: int, by_frequency: bool) -> Value:
    """Table [count, width] of rows [n, width] summed by index [n], in the compute dtype."""
    dtype = compute_dtype(rows.dtype)
    rows = b.convert(rows, dtype)
    index = narrow(b, index, count + 1)
    if by_frequency and index.numel:
        ones = b.full(index.shape, 1, dtype)
        frequency = write_slices(b, b.full((count,), 0, dtype), 0, index, ones, "add")
        rows = b.div(rows, b.broadcast(take_slices(b, frequency, 0, index), rows.shape, (0,)))
    if padding_idx >= 0:
        # Row `count` does not exist, so that a write to it is dropped.
        index = b.select(b.compare("EQ", index, b.like(index, padding_idx)), b.like(index, count), index)
    return write_slices(b, b.full((count, rows.shape[1]), 0, dtype), 0, index, rows, "add")


# Bags: bag i holds the indices from offsets[i] up to offsets[i + 1], or to the end


def _bags(b: Builder, offsets: Value, length: int) -> Value:
    """The bag of each of `length` positions, [length] int32: how many offsets are at or before it, less one."""
    marks = write_slices(b, b.full((length,), 0, torch.int32), 0, offsets, b.full(offsets.shape, 1, torch.int32), "add")
    return b.sub(running_count(b, marks), b.like(marks, 1))


def _kept(b: Builder, index: Value, padding_idx: int) -> Value | None:
    """Which indices count: all but padding_idx. None where that is all of them."""
    return b.compare("NE", index, b.like(index, padding_idx)) if padding_idx >= 0 else None


def _into_bags(b: Builder, start: Value, bags: Value, updates: Value, kind: str) -> Value:
    return write_slices(b, start, 0, bags, updates, kind)


@lowering(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    b: Builder,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, Value, Value, Value]:
    """Sum, mean or maximum of the rows of each bag; (output, offset2bag, bag_size, max_indices).

    The last three are notes for the gradient. Where PyTorch leaves one out (its shape says so) or undefined, it holds zeros.
    """
    out = b.out
    count, width = out.shape
    notes = [b.full(spec.shape, 0, spec.dtype) for spec in b.outs[1:] if spec is not None]
    if not indices.numel or not count:
        return b.full(out.shape, 0, out.dtype), notes[0], notes[1], notes[2]
    dtype = compute_dtype(weight.dtype)
    padding_idx = padding_idx + weight.shape[0] if padding_idx < -1 else padding_idx
    bags = _bags_of(b, offsets, indices.numel, count, padding_idx, indices)
    if b.used[1] and notes[0].shape == bags.shape:
        notes[0] = b.convert(bags, notes[0].dtype)
    if b.used[2] and notes[1].shape == (count,):
        notes[1] = b.convert(_counts(b, bags, count, torch.int32), notes[1].dtype)
    rows = b.convert(take_slices(b, weight, 0, indices), dtype)
    if mode == MAX:
        values, chosen = _max_of_bags(b, rows, indices, bags, count)
        if notes[2].shape == chosen.shape:
            notes[2] = b.convert(chosen, notes[2].dtype)
        return b.convert(values, out.dtype), notes[0], notes[1], notes[2]
    if per_sample_weights is not None:
        rows = b.mul(rows, b.broadcast(b.convert(per_sample_weights, dtype), rows.shape, (0,)))
    sums = _into_bags(b, b.full((count, width), 0, dtype), bags, rows, "add")
    if mode == MEAN:
        sums = b.div(sums, b.broadcast(_sizes(b, bags, count, dtype), sums.shape, (0,)))
    return b.convert(sums, out.dtype), notes[0], notes[1], notes[2]


def _bags_of(b: Builder, offsets: Value, length: int, count: int, padding_idx: int, indices: Value) -> Value:
    """The bag of each index; `count`, which is no bag, for indices that do not count."""
    bags = _bags(b, offsets, length)
    kept = _kept(b, narrow(b, indices, 2**31 - 1), padding_idx)
    return bags if kept is None else b.select(kept, bags, b.like(bags, count))


def _sizes(b: Builder, bags: Value, count: int, dtype: torch.dtype) -> Value:
    """Number of indices in each bag [count], at least 1."""
    sizes = _counts(b, bags, count, dtype)
    return b.max(sizes, b.like(sizes, 1))


def _counts(b: Builder, bags: Value, count: int, dtype: torch.dtype) -> Value:
    """Number of indices in each bag [count]."""
    return _into_bags(b, b.full((count,), 0, dtype), bags, b.full(bags.shape, 1, dtype), "add")


def _max_of_bags(b: Builder, rows: Value, indices: Value, bags: Value, count: int) -> tuple[Value, Value]:
    """Maximum over each bag [count, width] (0 for empty bags) and the index that it came from, the first of equals."""
    length, width = rows.shape
    best = _into_bags(b, b.full((count, width), lowest(rows.dtype), rows.dtype), bags, rows, "max")
    mine = take_slices(b, best, 0, bags)
    position = b.iota(rows.shape, 0, torch.int32)
    at = b.select(b.compare("EQ", rows, mine), position, b.like(position, length))
    first = _into_bags(b, b.full((count, width), length, torch.int32), bags, at, "min")
    empty = b.compare("EQ", first, b.like(first, length))
    chosen = take_slices(b, narrow(b, indices, 2**31 - 1), 0, first)
    nothing = b.binary("and", empty, b.logical_not(b.is_nan(best)))
    return b.select(nothing, b.like(best, 0), best), b.select(empty, b.like(chosen, 0), chosen)


@lowering(aten._embedding_bag_backward.default, aten._embedding_bag_dense_backward.default)
def embedding_bag_backward(
    b: Builder,
    grad: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    count: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    """Gradient [count, width] of the table from grad [bags, width]."""
    dtype = compute_dtype(grad.dtype)
    bag_count, width = grad.shape
    if not indices.numel or not bag_count:
        return b.full((count, width), 0, grad.dtype)
    grad = b.convert(grad, dtype)
    if mode == MAX:
        return b.convert(_max_backward(b, grad, indices, offsets, maximum_indices, count, padding_idx), b.out.dtype)
    bags = _bags_of(b, offsets, indices.numel, bag_count, padding_idx, indices)
    if mode == MEAN:
        grad = b.div(grad, b.broadcast(_sizes(b, bags, bag_count, dtype), grad.shape, (0,)))
    rows = take_slices(b, grad, 0, bags)
    if per_sample_weights is not None:
        rows = b.mul(rows, b.broadcast(b.convert(per_sample_weights, dtype), rows.shape, (0,)))
    return b.convert(_sum_rows(b, rows, indices, count, padding_idx, scale_grad_by_freq), b.out.dtype)


def _max_backward(b: Builder, grad: Value, indices: Value, offsets: Value, chosen: Value, count: int, padding_idx: int) -> Value:
    """Adds each element of grad to the row that its bag's maximum came from; empty bags have none."""
    bag_count, width = grad.shape
    bags = _bags_of(b, offsets, indices.numel, bag_count, padding_idx, indices)
    sizes = _counts(b, bags, bag_count, torch.int32)
    empty = b.broadcast(b.compare("EQ", sizes, b.like(sizes, 0)), grad.shape, (0,))
    kind = index_dtype(count + 1)
    row = b.convert(chosen, kind)
    row = b.select(empty, b.like(row, count), row)
    starts = b.concat([b.unsqueeze(v, 2) for v in (row, b.iota(grad.shape, 1, kind))], 2)
    return scatter(b, b.full((count, width), 0, grad.dtype), starts, grad, "add", window_dims=[], inserted=[0, 1], index_map=[0, 1])


@lowering(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    b: Builder, grad: Value, weight: Value, indices: Value, offsets: Value, offset2bag: Value, mode: int, padding_idx: int = -1
) -> Value:
    """Gradient [n] of the weights: each index's row times its bag's grad."""
    if not indices.numel:
        return b.full(b.out.shape, 0, b.out.dtype)
    dtype = compute_dtype(grad.dtype)
    bags = _bags_of(b, offsets, indices.numel, grad.shape[0], -1, indices)
    products = b.mul(b.convert(take_slices(b, grad, 0, bags), dtype), b.convert(take_slices(b, weight, 0, indices), dtype))
    sums = total(b, products, [1])
    kept = _kept(b, narrow(b, indices, 2**31 - 1), padding_idx)
    return b.convert(sums if kept is None else b.select(kept, sums, b.like(sums, 0)), b.out.dtype)


@lowering(aten.embedding_renorm.default)
def embedding_renorm(b: Builder, weight: Value, indices: Value, max_norm: float, norm_type: float) -> Value:
    """weight with each row that `indices` name scaled down to a p-norm of max_norm, where it is larger."""
    dtype = compute_dtype(weight.dtype)
    wide = b.convert(weight, dtype)
    size = b.unary("abs", wide)
    if norm_type == math.inf:
        norm = reduce(b, size, (1,), "max", init=0)
    elif norm_type == 2:
        norm = b.unary("sqrt", total(b, b.mul(wide, wide), (1,)))
    elif norm_type == 1:
        norm = total(b, size, (1,))
    else:
        powers = b.binary("power", size, b.like(size, norm_type))
        sums = total(b, powers, (1,))
        norm = b.binary("power", sums, b.like(sums, 1 / norm_type))
    named = write_slices(
        b,
        b.full((weight.shape[0],), False, torch.bool),
        0,
        b.reshape(indices, (indices.numel,)),
        b.full((indices.numel,), True, torch.bool),
        "second",
    )
    large = b.binary("and", named, b.compare("GT", norm, b.like(norm, max_norm)))
    scale = b.div(b.like(norm, max_norm), b.add(norm, b.like(norm, 1e-7)))
    scale = b.select(large, scale, b.like(scale, 1))
    return b.convert(b.mul(wide, b.broadcast(scale, wide.shape, (0,))), weight.dtype)
