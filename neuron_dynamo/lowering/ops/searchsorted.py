"""searchsorted and bucketize. Definitions: PyTorch's documentation of each op."""

from __future__ import annotations

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.loops import bounded_loop
from neuron_dynamo.lowering.ops.indexing import index_dtype
from neuron_dynamo.lowering.promote import result_type
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import pick, reduce, spread

aten = torch.ops.aten

_FEW = 32
"""Up to so many boundaries, comparing each value with all of them is quicker than a search."""


@lowering(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    b: Builder,
    boundaries: Value,
    values: Value | Scalar,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """Count of boundaries below each value, or at or below it if `right`. boundaries [n], or [..., n] with a row for each row of values."""
    right = side == "right" if side is not None else right
    dtype = result_type(boundaries, values)
    wanted = b.value(values, dtype, b.out.shape)
    boundaries = b.convert(boundaries, dtype)
    if not boundaries.shape[-1] or not wanted.numel:
        return b.full(b.out.shape, 0, b.out.dtype)
    few = boundaries.shape[-1] <= _FEW and sorter is None
    return (_compare_all if few else _search)(b, boundaries, wanted, right, sorter)


def _compare_all(b: Builder, boundaries: Value, wanted: Value, right: bool, sorter: Value | None) -> Value:
    lead = wanted.ndim
    shape = (*wanted.shape, boundaries.shape[-1])
    every = b.broadcast(boundaries, shape, (lead,) if boundaries.ndim == 1 else (*range(lead - 1), lead))
    above = b.compare("GT" if right else "GE", every, spread(b, wanted, shape, (lead,)))
    return reduce(b, b.convert(b.logical_not(above), b.out.dtype), (lead,), "add")


def _search(b: Builder, boundaries: Value, wanted: Value, right: bool, sorter: Value | None) -> Value:
    """Binary search of all values at once; `sorter` gives the order of each row of boundaries."""
    count = boundaries.shape[-1]
    kind = index_dtype(boundaries.numel)
    flat = b.reshape(boundaries, (boundaries.numel,))
    order = b.convert(b.reshape(sorter, (sorter.numel,)), kind) if sorter is not None else None
    if boundaries.ndim == 1:
        row = b.full(wanted.shape, 0, kind)
    else:
        rows = wanted.shape[:-1]
        number = b.reshape(b.iota((wanted.numel // wanted.shape[-1],), 0, kind), rows)
        row = spread(b, b.mul(number, b.like(number, count)), wanted.shape, (wanted.ndim - 1,))

    def more(carried: list[Value]) -> Value:
        return b.compare("LT", carried[0], b.like(carried[0], count.bit_length()))

    def step(carried: list[Value]) -> list[Value]:
        number, low, high = carried
        middle = b.div(b.add(low, high), b.like(low, 2))
        place = b.add(row, b.min(middle, b.like(middle, count - 1)))
        if order is not None:
            place = b.add(row, pick(b, order, place, 0))
        above = b.compare("GT" if right else "GE", pick(b, flat, place, 0), wanted)
        above = b.binary("or", above, b.compare("GE", low, high))
        one = b.like(low, 1)
        return [b.add(number, b.like(number, 1)), b.select(above, low, b.add(middle, one)), b.select(above, b.min(middle, high), high)]

    start = [b.scalar(0, torch.int32), b.full(wanted.shape, 0, kind), b.full(wanted.shape, count, kind)]
    return b.convert(bounded_loop(b, start, more, step, count.bit_length())[1], b.out.dtype)


@lowering(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(b: Builder, values: Value | Scalar, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return searchsorted(b, boundaries, values, right=right)
