"""Ops that count or number elements: histc, masked_scatter, nonzero_static, repeat_interleave. Definitions: the ATen schemas."""

from __future__ import annotations

from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.ops.indexing import running_count, take_slices, write_slices
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import highest, lowest, reduce

aten = torch.ops.aten


@lowering(aten.histc.default)
def histc(b: Builder, x: Value, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Value:
    """Counts of x's elements in `bins` equal bins from min to max, the last one closed; the data's own range where both are equal.

    Elements outside, and NaN, are not counted.
    """
    if not x.numel:
        return b.full(b.out.shape, 0, b.out.dtype)
    flat = b.reshape(x, (x.numel,))
    if min == max:
        low, high = (reduce(b, flat, (0,), kind, init=start(x.dtype)) for kind, start in (("min", highest), ("max", lowest)))
        flat_range = b.compare("EQ", low, high)
        one = b.like(low, 1)
        low, high = b.select(flat_range, b.sub(low, one), low), b.select(flat_range, b.add(high, one), high)
    else:
        low, high = b.scalar(min, x.dtype), b.scalar(max, x.dtype)
    low_all, high_all, width = (b.broadcast(v, flat.shape, ()) for v in (low, high, b.sub(high, low)))
    inside = b.binary("and", b.compare("GE", flat, low_all), b.compare("LE", flat, high_all))
    place = b.div(b.mul(b.sub(flat, low_all), b.like(flat, bins)), width)
    place = b.convert(b.select(inside, place, b.like(place, 0)), torch.int32)
    place = b.min(place, b.like(place, bins - 1))
    place = b.select(inside, place, b.like(place, bins))
    counts = write_slices(b, b.full((bins,), 0, torch.int32), 0, place, b.like(place, 1), "add")
    return b.convert(counts, b.out.dtype)


@lowering(aten.masked_scatter.default)
def masked_scatter(b: Builder, x: Value, mask: Value, source: Value) -> Value:
    """x with the places where mask holds filled from source's elements in order."""
    shape = b.out.shape
    x, mask = b.expand(x, shape), b.expand(b.convert(mask, torch.bool), shape)
    if not x.numel or not source.numel:
        return x
    order = running_count(b, b.reshape(mask, (mask.numel,)))
    taken = take_slices(b, b.reshape(b.convert(source, x.dtype), (source.numel,)), 0, b.sub(order, b.like(order, 1)))
    return b.select(mask, b.reshape(taken, shape), x)


@lowering(aten.masked_scatter_backward.default)
def masked_scatter_backward(b: Builder, grad: Value, mask: Value, sizes: Any) -> Value:
    """grad's elements where mask holds, in order, padded with zeros to `sizes`."""
    shape = b.out.shape
    flat, chosen = b.reshape(grad, (grad.numel,)), b.reshape(b.expand(b.convert(mask, torch.bool), grad.shape), (grad.numel,))
    count = 1
    for n in shape:
        count *= n
    order = running_count(b, chosen)
    place = b.select(chosen, b.sub(order, b.like(order, 1)), b.like(order, count))
    return b.reshape(write_slices(b, b.full((count,), 0, grad.dtype), 0, place, flat, "second"), shape)


@lowering(aten.nonzero_static.default)
def nonzero_static(b: Builder, x: Value, *, size: int, fill_value: int = -1) -> Value:
    """Coordinates [size, rank] of the nonzero elements in order, cut or filled with fill_value."""
    shape = b.out.shape
    if not x.numel or not size or not x.ndim:
        return b.full(shape, fill_value, torch.int64)
    chosen = b.reshape(b.convert(x, torch.bool), (x.numel,))
    order = running_count(b, chosen)
    place = b.select(chosen, b.sub(order, b.like(order, 1)), b.like(order, size))
    columns = []
    for d in range(x.ndim):
        coordinate = b.reshape(b.iota(x.shape, d), (x.numel,))
        columns.append(b.unsqueeze(write_slices(b, b.full((size,), fill_value, torch.int64), 0, place, coordinate, "second"), 1))
    return b.concat(columns, 1)


def _known_size(repeats: Any, *, output_size: int | None = None) -> str | None:
    return None if output_size is not None else "the size of the result depends on data; output_size= fixes it"


@lowering(aten.repeat_interleave.Tensor, guard=_known_size)
def repeat_interleave(b: Builder, repeats: Value, *, output_size: int | None = None) -> Value:
    """Each index i of the 1-d repeats, repeats[i] times; there are output_size of them."""
    (size,) = b.out.shape
    if not size:
        return b.full((0,), 0, b.out.dtype)
    ends = running_count(b, repeats)
    marks = write_slices(b, b.full((size,), 0, torch.int32), 0, ends, b.like(ends, 1), "add")
    return b.convert(running_count(b, marks), b.out.dtype)
