"""Order without a sort op, for targets that lack it: by counting, for short rows, else by a bitonic network of compare-exchanges.

Rows are pairs (key, tag) in lexicographic order: equal keys keep their order by the tag, the position in the row, and a NaN has
the key of the infinity that it lies beyond and a tag beyond all others'. So every comparison is of numbers, and the order is total.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.structured import highest, lowest, reduce

INDEX = torch.int32
LONGEST_COUNTED = 1024
MOST_COMPARISONS = 2**22
"""Rows are ranked by comparing all pairs up to this length and this number of pairs; beyond, the network takes fewer."""
LONGEST = 2**20
"""Longest row that is ordered natively: the network takes log2(n)^2 / 2 steps of about twenty ops."""
FEWEST_BY_MAXIMUM = 8
"""Up to so many of a row's greatest elements are taken one after the other."""


@dataclass(frozen=True)
class _Rows:
    """key and tag, [rows, n]; whether the greatest come first."""

    key: Value
    tag: Value
    descending: bool

    def before(self, b: Builder, other: _Rows) -> Value:
        """Where an element comes before other's."""
        first = b.compare("GT" if self.descending else "LT", self.key, other.key)
        tie = b.binary("and", b.compare("EQ", self.key, other.key), b.compare("LT", self.tag, other.tag))
        return b.binary("or", first, tie)

    def slice(self, b: Builder, dim: int, start: int, limit: int) -> _Rows:
        return _Rows(b.slice_dim(self.key, dim, start, limit), b.slice_dim(self.tag, dim, start, limit), self.descending)

    def reshape(self, b: Builder, *shape: int) -> _Rows:
        return _Rows(b.reshape(self.key, shape), b.reshape(self.tag, shape), self.descending)

    def reverse(self, b: Builder, dim: int) -> _Rows:
        return _Rows(b.reverse(self.key, [dim]), b.reverse(self.tag, [dim]), self.descending)


def ordered(b: Builder, x: Value, dim: int, descending: bool, count: int | None = None) -> tuple[Value, Value]:
    """(the first `count` of x in order, int32 index of each in x) along a non-negative dim; all of them by default.

    Stable; NaN is greatest."""
    moved = b.move(x, dim, x.ndim - 1)
    lead, n = moved.shape[:-1], x.shape[dim]
    count = n if count is None else count
    if not math.prod((*lead, count)):
        shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
        return b.full(shape, 0, x.dtype), b.full(shape, 0, INDEX)
    rows = _rows(b, b.reshape(moved, (math.prod(lead), n)), descending)
    if n <= LONGEST_COUNTED and math.prod(lead) * n * n <= MOST_COMPARISONS:
        rows = _counted(b, rows, count)
    elif count <= FEWEST_BY_MAXIMUM:
        rows = _picked(b, rows, count)
    else:
        rows = _network(b, rows, count)
    values, index = _restored(b, rows, x.dtype, n)
    return tuple(b.move(b.reshape(v, (*lead, count)), x.ndim - 1, dim) for v in (values, index))  # type: ignore[return-value]


def _rows(b: Builder, x: Value, descending: bool) -> _Rows:
    n = x.shape[1]
    if x.dtype == torch.bool:
        x = b.convert(x, INDEX)
    tag = b.iota(x.shape, 1, INDEX)
    if x.dtype.is_floating_point:
        nan = b.is_nan(x)
        tag = b.select(nan, b.add(tag, b.like(tag, -n if descending else n)), tag)
        x = b.select(nan, b.like(x, math.inf), x)
    return _Rows(x, tag, descending)


def _restored(b: Builder, rows: _Rows, dtype: torch.dtype, n: int) -> tuple[Value, Value]:
    key, tag = rows.key, rows.tag
    if dtype.is_floating_point:
        low, high = b.compare("LT", tag, b.like(tag, 0)), b.compare("GE", tag, b.like(tag, n))
        nan = low if rows.descending else high
        key = b.select(nan, b.like(key, math.nan), key)
        tag = b.select(nan, b.add(tag, b.like(tag, n if rows.descending else -n)), tag)
    return b.convert(key, dtype), tag


def _counted(b: Builder, rows: _Rows, count: int) -> _Rows:
    """Each element's rank is the number of those before it; the element of rank p goes to place p."""
    lead, n = rows.key.shape
    shape = (lead, n, n)

    def along(dim: int) -> _Rows:
        return _Rows(b.broadcast(rows.key, shape, (0, dim)), b.broadcast(rows.tag, shape, (0, dim)), rows.descending)

    rank = reduce(b, b.convert(along(2).before(b, along(1)), INDEX), (2,), "add")
    shape = (lead, count, n)
    hit = b.compare("EQ", b.broadcast(rank, shape, (0, 2)), b.iota(shape, 1, INDEX))

    def placed(v: Value) -> Value:
        return reduce(b, b.select(hit, b.broadcast(v, shape, (0, 2)), b.full(shape, lowest(v.dtype), v.dtype)), (2,), "max")

    return _Rows(placed(rows.key), placed(rows.tag), rows.descending)


def _picked(b: Builder, rows: _Rows, count: int) -> _Rows:
    """The first, `count` times, each time without those that went before."""
    key, tag = rows.key, rows.tag
    kind = "max" if rows.descending else "min"
    worst = lowest(key.dtype) if rows.descending else highest(key.dtype)
    gone = 2**31 - 1
    picked = []
    for turn in range(count):
        extreme = reduce(b, key, (1,), kind, keepdim=True)
        at_extreme = b.compare("EQ", key, b.broadcast(extreme, key.shape, (0, 1)))
        first = reduce(b, b.select(at_extreme, tag, b.like(tag, gone)), (1,), "min", keepdim=True)
        picked.append(_Rows(extreme, first, rows.descending))
        if turn < count - 1:
            taken = b.compare("EQ", tag, b.broadcast(first, tag.shape, (0, 1)))
            key, tag = b.select(taken, b.like(key, worst), key), b.select(taken, b.like(tag, gone), tag)
    return _Rows(b.concat([p.key for p in picked], 1), b.concat([p.tag for p in picked], 1), rows.descending)


def _network(b: Builder, rows: _Rows, count: int) -> _Rows:
    """Runs of 2, 4, 8 ... by bitonic merges. Runs as long as `count` needs grow no more: of two, only the better half is kept."""
    lead, n = rows.key.shape
    keep = 1 << (count - 1).bit_length()
    width = 1 << (n - 1).bit_length()
    worst = lowest(rows.key.dtype) if rows.descending else highest(rows.key.dtype)
    rows = _Rows(b.pad(rows.key, worst, [0, 0], [0, width - n]), b.pad(rows.tag, 2**31 - 1, [0, 0], [0, width - n]), rows.descending)
    run = 1
    while run < width:
        pairs = rows.reshape(b, lead, width // (2 * run), 2, run)
        better, worse = _exchanged(b, pairs.slice(b, 2, 0, 1), pairs.slice(b, 2, 1, 2).reverse(b, 3))
        if run < keep:
            rows, distance, run = _joined(b, better, worse), run // 2, 2 * run
        else:
            rows, distance, width = better, run // 2, width // 2
        while distance:
            pairs = rows.reshape(b, lead, width // (2 * distance), 2, distance)
            rows = _joined(b, *_exchanged(b, pairs.slice(b, 2, 0, 1), pairs.slice(b, 2, 1, 2)))
            distance //= 2
        rows = rows.reshape(b, lead, width)
    return rows.slice(b, 1, 0, count)


def _exchanged(b: Builder, left: _Rows, right: _Rows) -> tuple[_Rows, _Rows]:
    """(the earlier of each pair, the later)."""
    swap = right.before(b, left)

    def chosen(on_true: _Rows, on_false: _Rows) -> _Rows:
        return _Rows(b.select(swap, on_true.key, on_false.key), b.select(swap, on_true.tag, on_false.tag), left.descending)

    return chosen(right, left), chosen(left, right)


def _joined(b: Builder, left: _Rows, right: _Rows) -> _Rows:
    return _Rows(b.concat([left.key, right.key], 2), b.concat([left.tag, right.tag], 2), left.descending)
