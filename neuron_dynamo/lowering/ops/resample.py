"""Resizing of spatial dims: nearest, linear and cubic, antialiased too, and their gradients. Definitions: ATen's UpSample kernels.

Each dim is resized by itself: output i is a weighted sum of a few inputs, whose places and weights depend on sizes alone, and
are computed here as ATen computes them, in the dtype that it uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.ops.indexing import take_slices
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce

aten = torch.ops.aten
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Taps:
    """Output i is the sum over j of weights[i, j] * input[places[i, j]]; both arrays are [out, taps]."""

    places: Array
    weights: Array

    @property
    def copies(self) -> bool:
        """Whether every output is a copy of one input."""
        return self.places.shape[1] == 1 and bool((self.weights == 1).all())

    def adjoint(self, size: int) -> Taps:
        """The taps of the gradient, from out back to `size` inputs. Unused taps have weight 0."""
        hits: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        for i, (row, factors) in enumerate(zip(self.places, self.weights, strict=True)):
            for place, factor in zip(row, factors, strict=True):
                if factor:
                    hits[int(place)].append((i, factor))
        longest = max(1, *(len(h) for h in hits))
        places = np.zeros((size, longest), np.int64)
        weights = np.zeros((size, longest), self.weights.dtype)
        for n, pairs in enumerate(hits):
            for j in range(longest):
                place, factor = pairs[j] if j < len(pairs) else (pairs[-1][0] if pairs else 0, 0)
                places[n, j], weights[n, j] = place, factor
        return Taps(places, weights)


def _scale(size: int, out: int, factor: float | None, kind: Any) -> Any:
    return kind(1.0 / factor) if factor is not None and factor > 0 else kind(size) / kind(out)


def nearest_taps(size: int, out: int, factor: float | None, kind: Any, exact: bool) -> Taps:
    positions = np.arange(out).astype(kind)
    if exact:
        positions = positions + kind(0.5)
    places = np.minimum(np.floor(positions * _scale(size, out, factor, kind)).astype(np.int64), size - 1)
    return Taps(places[:, None], np.ones((out, 1), kind))


def _sources(size: int, out: int, factor: float | None, kind: Any, align_corners: bool) -> Array:
    """Real-valued place in the input of each output."""
    positions = np.arange(out).astype(kind)
    if align_corners:
        step = kind(size - 1) / kind(out - 1) if out > 1 else kind(0)
        return np.asarray(positions * step)
    return np.asarray(_scale(size, out, factor, kind) * (positions + kind(0.5)) - kind(0.5))


def linear_taps(size: int, out: int, factor: float | None, kind: Any, align_corners: bool) -> Taps:
    if size == out:
        return Taps(np.arange(out)[:, None], np.ones((out, 1), kind))
    sources = np.maximum(_sources(size, out, factor, kind, align_corners), kind(0))
    first = np.minimum(sources.astype(np.int64), size - 1)
    second = np.minimum(first + 1, size - 1)
    rest = np.clip(sources - first.astype(kind), kind(0), kind(1))
    return Taps(np.stack([first, second], 1), np.stack([kind(1) - rest, rest], 1))


def _cubic(distance: Array, a: Any) -> Array:
    """Keys' cubic convolution kernel with parameter a, at non-negative distances."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.asarray(np.where(distance <= 1, near, np.where(distance < 2, far, distance * 0)))


def cubic_taps(size: int, out: int, factor: float | None, kind: Any, align_corners: bool) -> Taps:
    if size == out:
        return Taps(np.arange(out)[:, None], np.ones((out, 1), kind))
    sources = _sources(size, out, factor, kind, align_corners)
    first = np.floor(sources)
    rest = sources - first
    places = np.stack([np.clip(first.astype(np.int64) + offset, 0, size - 1) for offset in (-1, 0, 1, 2)], 1)
    weights = np.stack([_cubic(np.asarray(d), kind(-0.75)) for d in (rest + 1, rest, 1 - rest, 2 - rest)], 1)
    return Taps(places, weights.astype(kind))


def antialias_taps(size: int, out: int, factor: float | None, kind: Any, align_corners: bool, reach: int) -> Taps:
    """A triangle (reach 2) or cubic (reach 4) filter as wide as the step between outputs, as Pillow's resize."""
    scale = _scale(size, out, factor, kind)
    if align_corners:
        scale = kind(size - 1) / kind(out - 1) if out > 1 else kind(0)
    support = kind(reach * 0.5) * max(scale, kind(1))
    inverse = kind(1) / scale if scale >= 1 else kind(1)
    rows = []
    for i in range(out):
        center = scale * kind(i + 0.5)
        start = max(int(center - support + kind(0.5)), 0)
        end = min(int(center + support + kind(0.5)), size)
        distance = np.abs((np.arange(start, end).astype(kind) - center + kind(0.5)) * inverse)
        weights = np.maximum(1 - distance, 0) if reach == 2 else _cubic(distance, kind(-0.5))
        rows.append((start, weights / weights.sum() if weights.sum() else weights))
    longest = max(len(weights) for _, weights in rows)
    places = np.zeros((out, longest), np.int64)
    factors = np.zeros((out, longest), kind)
    for i, (start, weights) in enumerate(rows):
        places[i] = np.minimum(start + np.arange(longest), start + len(weights) - 1)
        factors[i, : len(weights)] = weights
    return Taps(places, factors)


MakeTaps = Callable[..., Taps]


def apply_taps(b: Builder, x: Value, dim: int, taps: Taps) -> Value:
    """x with dim `dim` resized."""
    if taps.copies:
        return _copy_places(b, x, dim, taps.places[:, 0])
    ones = bool(np.isin(taps.weights, (0, 1)).all())
    if ones:
        # Sums of copies: what is not counted must not leave a NaN.
        places = b.literal(taps.places.astype(np.int32), torch.int32)
        taken = take_slices(b, x, dim, places)
        mask = b.broadcast(b.literal(taps.weights != 0, torch.bool), taken.shape, (dim, dim + 1))
        return reduce(b, b.select(mask, taken, b.like(taken, 0)), (dim + 1,), "add")
    return _weighted(b, x, dim, taps.places, taps.weights.astype(mlir.numpy_dtype(x.dtype)))


def _weighted(b: Builder, x: Value, dim: int, places: Array, weights: Array) -> Value:
    """The sum over the taps, with weights of x's type."""
    total = None
    for j in range(places.shape[1]):
        taken = _copy_places(b, x, dim, places[:, j])
        term = b.mul(taken, b.broadcast(b.literal(weights[:, j], x.dtype), taken.shape, (dim,)))
        total = term if total is None else b.add(total, term)
    assert total is not None
    return total


def _copy_places(b: Builder, x: Value, dim: int, places: Array) -> Value:
    """x's slices along dim at static places: a slice or a repetition where they are regular, else a gather."""
    size, out = x.shape[dim], len(places)
    steps = np.unique(np.diff(places))
    if out == 1 or (len(steps) == 1 and steps[0] > 0):
        return b.slice_dim(x, dim, int(places[0]), int(places[-1]) + 1, int(steps[0]) if out > 1 else 1)
    times = out // size
    if out % size == 0 and (places == np.repeat(np.arange(size), times)).all():
        split = (*x.shape[: dim + 1], times, *x.shape[dim + 1 :])
        repeated = b.broadcast(x, split, [d if d <= dim else d + 1 for d in range(x.ndim)])
        return b.reshape(repeated, (*x.shape[:dim], out, *x.shape[dim + 1 :]))
    return take_slices(b, x, dim, b.literal(places.astype(np.int32), torch.int32))


def _resize(b: Builder, x: Value, spatial: int, make: MakeTaps, factors: Sequence[float | None], options: tuple[Any, ...]) -> Value:
    """Resize the last `spatial` dims to those of the rule's result."""
    shape = b.out.shape
    if not math.prod(shape):
        return b.full(shape, 0, x.dtype)
    lead = x.ndim - spatial
    # Places of copies are found in float32, weights of bytes in float64.
    kind = np.float64 if x.dtype == torch.uint8 and make is not nearest_taps else _kind(x.dtype)
    taps = [make(x.shape[lead + i], shape[lead + i], factors[i], kind, *options) for i in range(spatial)]
    wide, apply = x, apply_taps
    if not all(t.copies for t in taps):
        wide = b.convert(x, compute_dtype(x.dtype) if x.dtype.is_floating_point else torch.int32)
        apply = apply_taps if x.dtype.is_floating_point else _apply_fixed_point
    for i in reversed(range(spatial)):
        wide = apply(b, wide, lead + i, taps[i])
    return b.convert(wide, x.dtype)


def _apply_fixed_point(b: Builder, x: Value, dim: int, taps: Taps) -> Value:
    """Bytes, held in int32, with dim `dim` resized as ATen does: by weights of 16 bits, rounded and clamped after each dim."""
    if taps.copies:
        return _copy_places(b, x, dim, taps.places[:, 0])
    largest = taps.weights.max()
    bits = next(n for n in range(23) if n == 22 or int(0.5 + largest * (1 << (n + 1))) >= 1 << 15)
    whole = np.trunc(taps.weights * (1 << bits) + np.copysign(0.5, taps.weights)).astype(np.int32)
    total = _weighted(b, x, dim, taps.places, whole)
    rounded = b.binary("shift_right_arithmetic", b.add(total, b.like(total, 1 << (bits - 1))), b.like(total, bits))
    return b.min(b.max(rounded, b.like(rounded, 0)), b.like(rounded, 255))


def _resize_backward(
    b: Builder, grad: Value, sizes: Sequence[int], spatial: int, make: MakeTaps, factors: Sequence[float | None], options: tuple[Any, ...]
) -> Value:
    """The adjoint of `_resize`, from grad back to `sizes`."""
    if not grad.numel or not math.prod(sizes):
        return b.full(sizes, 0, grad.dtype)
    lead = grad.ndim - spatial
    wide = b.convert(grad, compute_dtype(grad.dtype))
    for i in range(spatial):
        size, out = sizes[lead + i], grad.shape[lead + i]
        forward = make(size, out, factors[i], _kind(grad.dtype), *options)
        wide = _adjoint(b, wide, lead + i, forward, size)
    return b.convert(wide, grad.dtype)


def _adjoint(b: Builder, grad: Value, dim: int, forward: Taps, size: int) -> Value:
    out = grad.shape[dim]
    if forward.copies and out % size == 0 and (forward.places[:, 0] == np.repeat(np.arange(size), out // size)).all():
        split = (*grad.shape[:dim], size, out // size, *grad.shape[dim + 1 :])
        return reduce(b, b.reshape(grad, split), (dim + 1,), "add") if out != size else grad
    return apply_taps(b, grad, dim, forward.adjoint(size))


def _kind(dtype: torch.dtype) -> Any:
    return np.float64 if dtype == torch.float64 else np.float32


def _factors(given: Sequence[Any], spatial: int) -> list[float | None]:
    return [*given, *[None] * spatial][:spatial]


def _register(name: str, spatial: int, make: MakeTaps, fixed: tuple[Any, ...], aligned: bool) -> None:
    """Rules for an op, its `vec` overload, and its gradient. `aligned`: the op has an align_corners argument."""

    def options(arguments: list[Any]) -> tuple[Any, ...]:
        return (arguments.pop(0), *fixed) if aligned else fixed

    def forward(b: Builder, x: Value, output_size: Sequence[int], *arguments: Any) -> Value:
        rest = list(arguments)
        chosen = options(rest)
        return _resize(b, x, spatial, make, _factors(rest, spatial), chosen)

    def vector(b: Builder, x: Value, output_size: Sequence[int] | None, *arguments: Any) -> Value:
        rest = list(arguments)
        chosen = options(rest)
        return _resize(b, x, spatial, make, _factors(rest[0] or (), spatial), chosen)

    def backward(b: Builder, grad: Value, output_size: Sequence[int], input_size: Sequence[int], *arguments: Any) -> Value:
        rest = list(arguments)
        chosen = options(rest)
        return _resize_backward(b, grad, input_size, spatial, make, _factors(rest, spatial), chosen)

    lowering(getattr(aten, name).default)(forward)
    lowering(getattr(aten, name).vec)(vector)
    lowering(getattr(aten, f"{name}_backward").default)(backward)


for _spatial in (1, 2, 3):
    _register(f"upsample_nearest{_spatial}d", _spatial, nearest_taps, (False,), aligned=False)
    _register(f"_upsample_nearest_exact{_spatial}d", _spatial, nearest_taps, (True,), aligned=False)
for _name, _spatial in (("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3)):
    _register(_name, _spatial, linear_taps, (), aligned=True)
_register("upsample_bicubic2d", 2, cubic_taps, (), aligned=True)
_register("_upsample_bilinear2d_aa", 2, antialias_taps, (2,), aligned=True)
_register("_upsample_bicubic2d_aa", 2, antialias_taps, (4,), aligned=True)
