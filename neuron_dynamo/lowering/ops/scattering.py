"""Writing element by element along one dim: scatter, scatter_add, scatter_reduce, index_reduce. Definitions: the ATen schemas.

Indices out of range, on which PyTorch raises, are dropped. Sums and products into float16 and bfloat16 are made in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.ops.indexing import accumulate_into, along, narrow
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import identity
from neuron_dynamo.lowering.structured import scatter as emit_scatter

aten = torch.ops.aten

_KINDS = {"add": "add", "sum": "add", "mean": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}
Combine = Callable[[Value, Value, str], Value]


def _writer(b: Builder, x: Value, dim: int, index: Value) -> tuple[Combine, tuple[int, ...]]:
    """A function (target, updates, kind) -> target with updates combined at `index`, and the shape that updates must have.

    Where index spans all of x's other dims they are batch dims of the scatter; else positions are spelled out.
    """
    dim = along(dim, x.ndim)
    shape = index.shape if index.ndim else (1,)
    sizes = x.shape if x.ndim else (1,)
    batch = [d for d in range(len(sizes)) if d != dim]
    column = b.reshape(narrow(b, index, max(sizes)), (*shape, 1))
    whole = all(shape[d] == sizes[d] for d in batch)
    if not whole:
        column = b.concat([column if d == dim else b.iota((*shape, 1), d, column.dtype) for d in range(len(sizes))], len(shape))

    def write(target: Value, updates: Value, kind: str) -> Value:
        if target.dtype == torch.bool:
            kind = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(kind, kind)
        result = emit_scatter(
            b,
            b.reshape(target, sizes),
            column,
            updates,
            kind,
            window_dims=[],
            inserted=[dim] if whole else list(range(len(sizes))),
            index_map=[dim] if whole else list(range(len(sizes))),
            input_batching=batch if whole else (),
            indices_batching=batch if whole else (),
        )
        return b.reshape(result, x.shape)

    return write, shape


def _updates(b: Builder, source: Value | Scalar, dtype: torch.dtype, shape: tuple[int, ...]) -> Value:
    """The part of source that index covers."""
    if not isinstance(source, Value):
        return b.full(shape, source, dtype)
    if source.ndim == 0:
        return b.broadcast(b.convert(source, dtype), shape, ())
    return b.convert(b.slice(source, [0] * source.ndim, shape), dtype)


@lowering(aten.scatter.src, aten.scatter.value)
def scatter(b: Builder, x: Value, dim: int, index: Value, source: Value | Scalar) -> Value:
    """x with source written at `index`. Of several writes to one place the last wins, as in ATen's serial CPU kernel."""
    if not index.numel:
        return x
    write, shape = _writer(b, x, dim, index)
    return write(x, _updates(b, source, x.dtype, shape), "second")


@lowering(aten.scatter_add.default)
def scatter_add(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return scatter_reduce(b, x, dim, index, source, "sum")


@lowering(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with_reduce(b: Builder, x: Value, dim: int, index: Value, source: Value | Scalar, *, reduce: str) -> Value:
    return scatter_reduce(b, x, dim, index, source, reduce)


@lowering(aten.scatter_reduce.two)
def scatter_reduce(
    b: Builder, x: Value, dim: int, index: Value, source: Value | Scalar, reduce: str, *, include_self: bool = True
) -> Value:
    """x with source combined at `index`; without include_self, places that are written forget what x had there."""
    if not index.numel or not x.numel:
        return x
    write, shape = _writer(b, x, dim, index)
    return reduce_into(b, x, write, lambda dtype: _updates(b, source, dtype, shape), shape, reduce, include_self)


def reduce_into(
    b: Builder,
    x: Value,
    write: Combine,
    updates: Callable[[torch.dtype], Value],
    shape: tuple[int, ...],
    reduce: str,
    include_self: bool,
) -> Value:
    """Combine updates into x through `write`; `updates(dtype)` gives them in that dtype and has `shape`."""
    kind = _KINDS[reduce]

    def combine(start: Value) -> Value:
        dtype = start.dtype
        if not include_self:
            start = write(start, b.full(shape, identity(kind, dtype), dtype), "second")
        result = write(start, updates(dtype), kind)
        if reduce == "mean":
            count = write(b.full(x.shape, 1 if include_self else 0, dtype), b.full(shape, 1, dtype), "add")
            if not include_self:
                count = b.max(count, b.like(count, 1))
            result = _mean(b, result, count)
        return result

    return accumulate_into(b, x, combine)


def _mean(b: Builder, total: Value, count: Value) -> Value:
    """total / count; integers round toward minus infinity."""
    quotient = b.div(total, count)
    if total.dtype.is_floating_point or not total.dtype.is_signed:
        return quotient
    rest = b.sub(total, b.mul(quotient, count))
    return b.select(b.compare("LT", rest, b.like(rest, 0)), b.sub(quotient, b.like(quotient, 1)), quotient)


@lowering(aten.index_reduce.default)
def index_reduce(b: Builder, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True) -> Value:
    """As scatter_reduce, with whole slices along `dim` named by a 1-d index."""
    if not source.numel or not x.numel:
        return x
    dim = along(dim, x.ndim)
    index = b.reshape(index, (index.numel,))
    shape = source.shape if source.ndim else (1,)
    write, shape = _writer(b, x, dim, b.broadcast(index, shape, (dim,)))
    return reduce_into(b, x, write, lambda dtype: b.reshape(b.convert(source, dtype), shape), shape, reduce, include_self)
