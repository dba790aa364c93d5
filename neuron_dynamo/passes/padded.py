"""Native forms of ops whose result has a size that depends on data: the result at its largest possible size, and its true size.

The program that a form is traced into has static shapes, so that any target can run it; the runtime cuts what it gives to the true size.
Definitions: aten/src/ATen/native/Unique.cpp, TensorAdvancedIndexing.cpp, with the strides of their results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

UNDEFINED = -1
"""The size that says: eager PyTorch's answer for this data has no definition that a program could follow."""


@dataclass(frozen=True)
class Padded:
    """The native form of one op; each function takes the op's own arguments.

    `compute` gives tensors of static shape, the last of which is the true size (0-d int64). `finish` makes the op's result of that size,
    the other tensors, and the arguments. `why_not` tells why arguments of these shapes have no native form.
    """

    compute: Callable[..., tuple[Tensor, ...]]
    finish: Callable[..., Any]
    why_not: Callable[..., str | None] = lambda *_, **__: None


def padded_form(op: Any) -> Padded | None:
    """The native form of `op`, if it has one."""
    return _FORMS.get(op)


def _cut(values: Tensor, size: int) -> Tensor:
    """The first `size` rows, in memory of their own size."""
    return values if values.shape[0] == size else values[:size].clone()


def _positions(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """chosen [n], bool: (positions of the chosen in order, filled up with n [n], their number)."""
    n = chosen.shape[0]
    place = torch.where(chosen, chosen.cumsum(0) - 1, n)
    source = torch.where(chosen, torch.arange(n), n)
    return torch.full((n + 1,), n).scatter(0, place, source)[:n], chosen.sum()


def _rows(values: Tensor, positions: Tensor) -> Tensor:
    """values [n, ...] at positions; the last row where they are n."""
    return values.index_select(0, positions.clamp(max=max(values.shape[0] - 1, 0)))


# unique


def _starts(rows: Tensor) -> Tensor:
    """rows [n, ...], n > 0: which differ from the one before [n]. A NaN differs from anything."""
    differs = rows[1:] != rows[:-1]
    if differs.ndim > 1:
        differs = differs.flatten(1).any(1)
    return torch.cat([torch.ones(1, dtype=torch.bool), differs])


def _runs(rows: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(first row of each run, number of the run of each row, length of each run, number of runs)."""
    n = rows.shape[0]
    positions, size = _positions(starts)
    ends = torch.cat([positions[1:], torch.full((1,), n)])
    return _rows(rows, positions), starts.cumsum(0) - 1, ends - positions, size


def _no_rows(*shape: int, like: Tensor) -> tuple[Tensor, ...]:
    empty = torch.zeros(0, dtype=torch.int64)
    return like.new_zeros(shape), empty, empty.clone(), torch.zeros((), dtype=torch.int64)


def _unique2(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> tuple[Tensor, ...]:
    if not x.numel():
        return _no_rows(0, like=x)
    values, order = torch.sort(x.reshape(-1), stable=True)
    first, run, lengths, size = _runs(values, _starts(values))
    return _wanted(first, torch.zeros_like(run).scatter(0, order, run), lengths, size, return_inverse, return_counts)


def _wanted(values: Tensor, inverse: Tensor, counts: Tensor, size: Tensor, *flags: bool) -> tuple[Tensor, ...]:
    return values, *(result for result, flag in zip((inverse, counts), flags, strict=True) if flag), size


def _unique2_result(
    size: int, made: Sequence[Tensor], x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    rest = iter(made[1:])
    empty = torch.empty(0, dtype=torch.int64)
    inverse = next(rest).reshape(x.shape) if return_inverse else empty
    return _cut(made[0], size), inverse, _cut(next(rest), size) if return_counts else empty.clone()


def _unique_consecutive(x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> tuple[Tensor, ...]:
    if dim is not None and (dim, x.ndim) != (0, 1):
        rows = x.movedim(dim, 0)
        return _runs(rows, _starts(rows)) if rows.shape[0] else _no_rows(*rows.shape, like=x)
    if not x.numel():
        return _no_rows(0, like=x)
    values = x.reshape(-1)
    return _wanted(*_runs(values, _starts(values)), return_inverse, return_counts)


def _unique_consecutive_result(
    size: int, made: Sequence[Tensor], x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None and (dim, x.ndim) != (0, 1):
        return _slices(size, made, x, dim)
    return _unique2_result(size, made, x, True, return_inverse, return_counts)


def _slices(size: int, made: Sequence[Tensor], x: Tensor, dim: int, *_: bool, **__: bool) -> tuple[Tensor, Tensor, Tensor]:
    values, inverse, counts = made
    shaped = _cut(values, size).movedim(0, dim) if x.numel() else x.new_zeros(x.shape)
    return shaped, inverse, _cut(counts, size)


def _unique_dim(x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> tuple[Tensor, ...]:
    """Eager's order of slices with a NaN in them is that of a sort by a comparison that is no order."""
    rows = x.movedim(dim, 0)
    n = rows.shape[0]
    if not n:
        return _no_rows(*rows.shape, like=x)
    rank = _lexicographic_ranks(rows.reshape(n, -1))
    first = torch.full((n,), n).scatter_reduce(0, rank, torch.arange(n), "amin")
    counts = torch.zeros(n, dtype=torch.int64).scatter_add(0, rank, torch.ones(n, dtype=torch.int64))
    size = rank.amax() + 1
    if x.dtype.is_floating_point:
        size = torch.where((x != x).any(), UNDEFINED, size)
    return _rows(rows, first), rank, counts, size


def _lexicographic_ranks(rows: Tensor) -> Tensor:
    """rows [n, m]: for each, how many different rows come before it [n]. Ranks of pairs of columns, then of pairs of pairs, and so on."""
    n = rows.shape[0]
    ranks = _ranks(rows)
    while ranks.shape[1] > 1:
        if ranks.shape[1] % 2:
            ranks = torch.cat([ranks, ranks.new_zeros(n, 1)], 1)
        ranks = _ranks(ranks[:, 0::2] * n + ranks[:, 1::2])
    return ranks[:, 0]


def _ranks(columns: Tensor) -> Tensor:
    """columns [n, m]: for each element, how many different ones of its column are less [n, m]."""
    values, order = torch.sort(columns, dim=0, stable=True)
    starts = (values[1:] != values[:-1]).to(torch.int64)
    rank = torch.cat([starts.new_zeros(1, starts.shape[1]), starts]).cumsum(0)
    return torch.zeros_like(rank).scatter(0, order, rank)


def _empty_slices(x: Tensor, dim: int | None, *_: Any, **__: Any) -> str | None:
    if x.is_complex():
        return "complex numbers have no order"
    if dim is not None and (not x.ndim or (not x.numel() and x.shape[dim])):
        return "eager PyTorch refuses slices without elements"
    return None


def _empty_runs(x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> str | None:
    return _empty_slices(x, dim)


# Places where a mask holds


def _nonzero(x: Tensor) -> tuple[Tensor, ...]:
    if not x.numel():
        return torch.zeros((x.ndim, 0), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    positions, size = _positions((x != 0).reshape(-1))
    coordinates = []
    for length in reversed(x.shape):
        coordinates.append(positions % max(length, 1))
        positions = positions // max(length, 1)
    return torch.stack(coordinates[::-1]) if coordinates else torch.zeros((0, 1), dtype=torch.int64), size


def _nonzero_result(size: int, made: Sequence[Tensor], x: Tensor) -> Tensor:
    (coordinates,) = made
    if size != coordinates.shape[1]:
        coordinates = coordinates[:, :size].clone(memory_format=torch.contiguous_format)
    return coordinates.t()


def _masked_select(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    x, mask = torch.broadcast_tensors(x, mask)  # type: ignore[no-untyped-call]
    if not x.numel():
        return x.new_zeros(0), torch.zeros((), dtype=torch.int64)
    positions, size = _positions(mask.reshape(-1))
    return _rows(x.reshape(-1), positions), size


def _masked_select_result(size: int, made: Sequence[Tensor], *_: Tensor) -> Tensor:
    return _cut(made[0], size)


def _not_bool(x: Tensor, mask: Tensor) -> str | None:
    return None if mask.dtype == torch.bool else f"a mask of {mask.dtype}"


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    dim, mask = _mask(indices)
    positions, size = _positions((mask != 0).reshape(-1))
    return _rows(x.flatten(dim, dim + mask.ndim - 1).movedim(dim, 0), positions), size


def _index_result(size: int, made: Sequence[Tensor], x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    dim, mask = _mask(indices)
    # Eager keeps the order of x's strides as far as it can.
    positions = [None] * dim + [torch.empty(size, dtype=torch.int64, device="meta")] * mask.ndim
    like = aten.index.Tensor(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), positions)
    values = made[0][:size].movedim(0, dim)
    return torch.empty_strided(like.shape, like.stride(), dtype=x.dtype).copy_(values)


def _mask(indices: Sequence[Tensor | None]) -> tuple[int, Tensor]:
    ((dim, mask),) = ((dim, index) for dim, index in enumerate(indices) if index is not None)
    return dim, mask


def _not_one_mask(x: Tensor, indices: Sequence[Tensor | None]) -> str | None:
    given = [index for index in indices if index is not None]
    if len(given) != 1:
        return "a mask beside another index"
    dim, mask = _mask(indices)
    if mask.dtype not in (torch.bool, torch.uint8) or not mask.ndim or mask.shape != x.shape[dim : dim + mask.ndim]:
        return "an index that is no mask over dims of the tensor"
    return None


_FORMS: Mapping[Any, Padded] = {
    aten._unique2.default: Padded(_unique2, _unique2_result),
    aten.unique_dim.default: Padded(_unique_dim, _slices, _empty_slices),
    aten.unique_consecutive.default: Padded(_unique_consecutive, _unique_consecutive_result, _empty_runs),
    aten.nonzero.default: Padded(_nonzero, _nonzero_result),
    aten.masked_select.default: Padded(_masked_select, _masked_select_result, _not_bool),
    aten.index.Tensor: Padded(_index, _index_result, _not_one_mask),
}


def empty_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition for the one case whose sizes PyTorch knows when it traces: that there are no elements."""
    known = (aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default, aten.nonzero.default)
    return {op: functools.partial(_of_nothing, _FORMS[op]) for op in known}


def _of_nothing(form: Padded, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    if not statically_known_true(x.numel() == 0) or form.why_not(x, *args, **kwargs) is not None:
        return NotImplemented
    *made, _ = form.compute(x, *args, **kwargs)
    return form.finish(0, made, x, *args, **kwargs)
