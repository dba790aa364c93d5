"""Reflection and replication padding of the last dims, and their gradients. Definitions: the ATen schemas; pads come last dim first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce

aten = torch.ops.aten


def _edges(rank: int, pads: Sequence[int]) -> list[tuple[int, int, int]]:
    """(dim, pad before, pad behind) of each padded dim."""
    return [(rank - 1 - i, pads[2 * i], pads[2 * i + 1]) for i in range(len(pads) // 2)]


def _cropped(b: Builder, x: Value, dim: int, low: int, high: int) -> Value:
    """x without what negative pads cut off."""
    return b.slice_dim(x, dim, max(0, -low), x.shape[dim] - max(0, -high))


def _within(b: Builder, part: Value, dim: int, before: int, behind: int) -> Value:
    low, high = [0] * part.ndim, [0] * part.ndim
    low[dim], high[dim] = before, behind
    return b.pad(part, 0, low, high)


def _reflected(b: Builder, x: Value, dim: int, low: int, high: int) -> list[Value]:
    n = x.shape[dim]
    before = [b.reverse(b.slice_dim(x, dim, 1, low + 1), [dim])] if low > 0 else []
    behind = [b.reverse(b.slice_dim(x, dim, n - 1 - high, n - 1), [dim])] if high > 0 else []
    return [*before, x, *behind]


def _replicated(b: Builder, x: Value, dim: int, low: int, high: int) -> list[Value]:
    n = x.shape[dim]

    def edge(at: int, count: int) -> list[Value]:
        shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
        return [b.broadcast(b.slice_dim(x, dim, at, at + 1), shape, range(x.ndim))] if count > 0 else []

    return [*edge(0, low), x, *edge(n - 1, high)]


def _pad(b: Builder, x: Value, pads: Sequence[int], extend: Callable[..., list[Value]]) -> Value:
    for dim, low, high in _edges(x.ndim, pads):
        x = _cropped(b, b.concat(extend(b, x, dim, low, high), dim), dim, low, high)
    return x


def _pad_backward(b: Builder, grad: Value, x: Value, pads: Sequence[int], reflect: bool) -> Value:
    result = b.convert(grad, compute_dtype(grad.dtype))
    for dim, low, high in _edges(x.ndim, pads):
        before, behind = max(low, 0), max(high, 0)
        result = _within(b, result, dim, max(0, -low), max(0, -high))
        total = result.shape[dim]
        n = total - before - behind
        middle = b.slice_dim(result, dim, before, before + n)
        if before:
            part = b.slice_dim(result, dim, 0, before)
            middle = b.add(middle, _folded(b, part, dim, n, reflect, at_start=True))
        if behind:
            part = b.slice_dim(result, dim, total - behind, total)
            middle = b.add(middle, _folded(b, part, dim, n, reflect, at_start=False))
        result = middle
    return b.convert(result, x.dtype)


def _folded(b: Builder, part: Value, dim: int, n: int, reflect: bool, at_start: bool) -> Value:
    """The gradient of a padded edge, brought to the places among n that it was copied from."""
    if reflect:
        count = part.shape[dim]
        part, skipped = b.reverse(part, [dim]), 1
    else:
        count, skipped = 1, 0
        part = reduce(b, part, (dim,), "add", keepdim=True)
    rest = n - count - skipped
    return _within(b, part, dim, skipped, rest) if at_start else _within(b, part, dim, rest, skipped)


@lowering(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(b: Builder, x: Value, padding: Sequence[int]) -> Value:
    """x mirrored at its edges, which are not repeated."""
    return _pad(b, x, padding, _reflected)


@lowering(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(b: Builder, x: Value, padding: Sequence[int]) -> Value:
    """x with its edges repeated."""
    return _pad(b, x, padding, _replicated)


@lowering(aten.reflection_pad1d_backward.default, aten.reflection_pad2d_backward.default, aten.reflection_pad3d_backward.default)
def reflection_pad_backward(b: Builder, grad: Value, x: Value, padding: Sequence[int]) -> Value:
    return _pad_backward(b, grad, x, padding, reflect=True)


@lowering(aten.replication_pad1d_backward.default, aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default)
def replication_pad_backward(b: Builder, grad: Value, x: Value, padding: Sequence[int]) -> Value:
    return _pad_backward(b, grad, x, padding, reflect=False)
