"""Sorting and order statistics as stablehlo.sort of (value, index), or without it (ordering.py) where the target has no sort.
Definitions: PyTorch's documentation of each op.

Every sort is stable. NaN counts as greater than any number: last when ascending, first when descending.
"""

from __future__ import annotations

from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.ops.cumulative import scan
from neuron_dynamo.lowering.ops.reduction import extreme_with_index
from neuron_dynamo.lowering.ordering import LONGEST, ordered
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import pick, reduce
from neuron_dynamo.lowering.structured import sort as sort_op
from neuron_dynamo.target import Target

aten = torch.ops.aten


def sorted_with_index(b: Builder, x: Value, dim: int, descending: bool, count: int | None = None) -> tuple[Value, Value]:
    """(sorted x, int32 index of each of its elements in x) along a non-negative dim; only the first `count`, if given."""
    count = x.shape[dim] if count is None else count
    if "sort" not in b.target.ops:
        return ordered(b, x, dim, descending, count)

    def before(left: list[Value], right: list[Value]) -> Value:
        first, second = left[0], right[0]
        smaller = b.compare("GT" if descending else "LT", first, second)
        if not x.dtype.is_floating_point:
            return smaller
        leads, follows = (first, second) if descending else (second, first)
        return b.binary("or", smaller, b.binary("and", b.is_nan(leads), b.logical_not(b.is_nan(follows))))

    values, index = (b.slice_dim(v, dim, 0, count) for v in sort_op(b, [x, b.iota(x.shape, dim, torch.int32)], dim, before))
    return values, index


def _orderable(x: Any, *_: Any, target: Target, **__: Any) -> str | None:
    if "sort" in target.ops or x.numel() <= LONGEST:
        return None
    return f"target {target.name} has no sort, and rows of more than {LONGEST} elements are not ordered without"


@lowering(aten.sort.default, guard=_orderable)
def sort(b: Builder, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, b.full((), 0, torch.int64)
    values, index = sorted_with_index(b, x, dim % x.ndim, descending)
    return values, b.convert(index, torch.int64)


@lowering(aten.sort.stable, guard=_orderable)
def sort_stable(b: Builder, x: Value, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    return sort(b, x, dim, descending)


@lowering(aten.topk.default, guard=_orderable)
def topk(b: Builder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    if x.ndim == 0:
        shape = b.out.shape
        return (x, b.full((), 0, torch.int64)) if shape == () else (b.reshape(x, shape), b.full(shape, 0, torch.int64))
    dim %= x.ndim
    values, index = sorted_with_index(b, x, dim, largest, k)
    return values, b.convert(index, torch.int64)


def _finish(b: Builder, values: Value, index: Value) -> tuple[Value, Value]:
    shape = b.out.shape
    return b.reshape(values, shape), b.convert(b.reshape(index, shape), torch.int64)


@lowering(aten.kthvalue.default, guard=_orderable)
def kthvalue(b: Builder, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    if x.ndim == 0:
        return x, b.full((), 0, torch.int64)
    dim %= x.ndim
    values, index = (b.slice_dim(v, dim, k - 1, k) for v in sorted_with_index(b, x, dim, False, k))
    return _finish(b, values, index)


def _median(b: Builder, x: Value, dim: int, ignore_nan: bool) -> tuple[Value, Value]:
    """(lower median, int32 index) along dim, which is dropped. A NaN is the median, the first one, unless they are ignored."""
    values, index = sorted_with_index(b, x, dim, False)
    n = x.shape[dim]

    def pick_middle(v: Value) -> Value:
        return b.reshape(b.slice_dim(v, dim, (n - 1) // 2, (n - 1) // 2 + 1), x.shape[:dim] + x.shape[dim + 1 :])

    if not x.dtype.is_floating_point:
        return pick_middle(values), pick_middle(index)
    numbers = reduce(b, b.convert(b.compare("EQ", x, x), torch.int32), (dim,), "add")
    if ignore_nan:
        position = b.div(b.max(b.sub(numbers, b.like(numbers, 1)), b.like(numbers, 0)), b.like(numbers, 2))
    else:
        complete = b.compare("EQ", numbers, b.like(numbers, n))
        position = b.select(complete, b.like(numbers, (n - 1) // 2), numbers)
    return pick(b, values, position, dim), pick(b, index, position, dim)


def _median_rules(packet: torch._ops.OpOverloadPacket, ignore_nan: bool) -> None:
    @lowering(packet.dim, guard=_orderable)
    def along(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if x.ndim == 0:
            return x, b.full((), 0, torch.int64)
        return _finish(b, *_median(b, x, dim % x.ndim, ignore_nan))

    @lowering(packet.default, guard=_orderable)
    def over_all(b: Builder, x: Value) -> Value:
        if x.numel == 0:
            return b.full((), float("nan") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min, x.dtype)
        return _median(b, b.reshape(x, (x.numel,)), 0, ignore_nan)[0]


_median_rules(aten.median, ignore_nan=False)
_median_rules(aten.nanmedian, ignore_nan=True)


@lowering(aten.mode.default, guard=_orderable)
def mode(b: Builder, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The least of the most frequent values, and the index of its last occurrence."""
    if x.ndim == 0:
        return x, b.full((), 0, torch.int64)
    dim %= x.ndim
    n = x.shape[dim]
    values, index = sorted_with_index(b, x, dim, False)
    before = b.slice_dim(values, dim, 0, n - 1)
    after = b.slice_dim(values, dim, 1, n)
    low, high = [0] * x.ndim, [0] * x.ndim
    low[dim] = 1
    starts = b.pad(b.compare("NE", before, after), True, low, high)
    position = b.iota(x.shape, dim, torch.int32)
    start = scan(b, b.select(starts, position, b.like(position, 0)), dim, "max")
    _, best = extreme_with_index(b, b.sub(position, start), dim, "max")
    return _finish(b, pick(b, values, best, dim), pick(b, index, best, dim))
