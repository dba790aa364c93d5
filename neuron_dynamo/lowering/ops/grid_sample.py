"""Sampling at real-valued places: grid_sampler_2d and grid_sampler_3d, and their gradients. Definition: ATen's GridSampler.

Each sample is a sum over taps, one for each combination of a few integer places per dim. A tap of a dim has a place, a weight, and
the weight's derivative by the coordinate; places outside count for nothing where the padding mode is zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import gather, reduce, scatter

aten = torch.ops.aten

LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


@dataclass(frozen=True)
class Tap:
    """place: int32 [n, samples], in range. weight and slope: float. inside: bool, or None where no place is outside."""

    place: Value
    weight: Value
    slope: Value
    inside: Value | None


@dataclass(frozen=True)
class Coordinate:
    """Where samples lie along a dim of the input, and the derivative of that by the grid's value; both [n, samples]."""

    place: Value
    slope: Value


def _clip(b: Builder, x: Value, size: int) -> tuple[Value, Value]:
    """x within 0 and size - 1, and where it was so, strictly, before."""
    low, high = b.like(x, 0), b.like(x, size - 1)
    inside = b.binary("and", b.compare("GT", x, low), b.compare("LT", x, high))
    return b.min(b.max(x, low), high), inside


def _reflect(b: Builder, x: Value, size: int, align_corners: bool) -> tuple[Value, Value]:
    """x mirrored at the edges until it lies within, and the derivative of that, 1 or -1."""
    low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
    if span == 0:
        return b.like(x, 0), b.like(x, 0)
    shifted = b.sub(x, b.like(x, low))
    distance = b.unary("abs", shifted)
    whole = b.like(x, span)
    extra = b.binary("remainder", distance, whole)
    flips = b.unary("floor", b.div(distance, whole))
    even = b.compare("EQ", b.binary("remainder", flips, b.like(flips, 2)), b.like(flips, 0))
    place = b.add(b.select(even, extra, b.sub(whole, extra)), b.like(x, low))
    up = b.compare("EQ", b.compare("GE", shifted, b.like(x, 0)), even)
    return place, b.select(up, b.like(x, 1), b.like(x, -1))


def _coordinate(b: Builder, value: Value, size: int, mode: int, padding: int, align_corners: bool) -> Coordinate:
    """The grid's value, from -1 to 1, as a place in a dim of `size`."""
    factor = (size - 1) / 2 if align_corners else size / 2
    one = b.like(value, 1)
    if align_corners:
        place = b.mul(b.add(value, one), b.like(value, factor))
    else:
        place = b.mul(b.sub(b.mul(b.add(value, one), b.like(value, size)), one), b.like(value, 0.5))
    slope = b.like(value, factor)
    if mode == CUBIC or padding == ZEROS:
        return Coordinate(place, slope)
    if padding == REFLECTION:
        place, sign = _reflect(b, place, size, align_corners)
        slope = b.mul(slope, sign)
    place, inside = _clip(b, place, size)
    return Coordinate(place, b.select(inside, slope, b.like(slope, 0)))


def _taps(b: Builder, place: Value, size: int, mode: int, padding: int, align_corners: bool) -> list[Tap]:
    zero, one = b.like(place, 0), b.like(place, 1)
    if mode == NEAREST:
        return [_tap(b, b.unary("round_nearest_even", place), one, zero, size, padding)]
    first = b.unary("floor", place)
    rest = b.sub(place, first)
    if mode == LINEAR:
        weights = [(0, b.sub(one, rest), b.neg(one)), (1, rest, one)]
        return [_tap(b, b.add(first, b.like(first, at)) if at else first, w, s, size, padding) for at, w, s in weights]
    taps = []
    for at in (-1, 0, 1, 2):
        where = b.add(first, b.like(first, at)) if at else first
        if padding == REFLECTION:
            where, _ = _reflect(b, where, size, align_corners)
        distance = b.unary("abs", b.sub(rest, b.like(rest, at)))
        weight, slope = _cubic(b, distance, near=at in (0, 1))
        # Places behind the sample come nearer as it moves on.
        taps.append(_tap(b, where, weight, slope if at <= 0 else b.neg(slope), size, padding))
    return taps


def _cubic(b: Builder, d: Value, near: bool) -> tuple[Value, Value]:
    """Keys' kernel with a = -0.75 at distance d, within 1 or between 1 and 2, and its derivative by d."""
    a = -0.75
    factors = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)

    def horner(coefficients: Sequence[float]) -> Value:
        result = b.like(d, coefficients[0])
        for c in coefficients[1:]:
            result = b.mul(result, d)
            result = b.add(result, b.like(d, c)) if c else result
        return result

    return horner(factors), horner((3 * factors[0], 2 * factors[1], factors[2]))


def _tap(b: Builder, place: Value, weight: Value, slope: Value, size: int, padding: int) -> Tap:
    low, high = b.like(place, 0), b.like(place, size - 1)
    inside = None
    if padding == ZEROS:
        inside = b.binary("and", b.compare("GE", place, low), b.compare("LE", place, high))
    return Tap(b.convert(b.min(b.max(place, low), high), torch.int32), weight, slope, inside)


@dataclass(frozen=True)
class Corner:
    """One combination of taps: flat place [n, samples, 1], weight and its derivative by each dim's coordinate, and inside."""

    place: Value
    weight: Value
    slopes: list[Value]
    inside: Value | None


def _corners(b: Builder, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> tuple[list[Corner], list[Coordinate]]:
    """All corners, and the coordinates by dim of x, for grid [n, samples, dims], whose last entry is x's first dim."""
    sizes = x.shape[2:]
    coordinates, taps = [], []
    for d, size in enumerate(sizes):
        at = len(sizes) - 1 - d
        value = b.reshape(b.slice_dim(grid, 2, at, at + 1), grid.shape[:2])
        coordinates.append(_coordinate(b, value, size, mode, padding, align_corners))
        taps.append(_taps(b, coordinates[-1].place, size, mode, padding, align_corners))
    corners = []
    for combination in itertools.product(*taps):
        place = combination[0].place
        for tap, size in zip(combination[1:], sizes[1:], strict=True):
            place = b.add(b.mul(place, b.like(place, size)), tap.place)
        insides = [tap.inside for tap in combination if tap.inside is not None]
        inside = _product(b, insides, lambda p, q: b.binary("and", p, q)) if insides else None
        slopes = [_product(b, [tap.slope if e == d else tap.weight for e, tap in enumerate(combination)], b.mul) for d in range(len(sizes))]
        corners.append(Corner(b.unsqueeze(place, 2), _product(b, [tap.weight for tap in combination], b.mul), slopes, inside))
    return corners, coordinates


def _product(b: Builder, values: Sequence[Value], combine: Callable[[Value, Value], Value]) -> Value:
    result = values[0]
    for value in values[1:]:
        result = combine(result, value)
    return result


def _read(b: Builder, flat: Value, corner: Corner) -> Value:
    """flat [n, channels, places] at a corner's places, [n, channels, samples], zero outside."""
    n, channels, _ = flat.shape
    shape = (n, channels, corner.place.shape[1])
    taken = gather(
        b,
        flat,
        corner.place,
        offset_dims=[1],
        collapsed=[2],
        index_map=[2],
        slice_sizes=[1, channels, 1],
        shape=shape,
        operand_batching=[0],
        indices_batching=[0],
    )
    if corner.inside is None:
        return taken
    return b.select(b.broadcast(corner.inside, shape, (0, 2)), taken, b.like(taken, 0))


def _flat(b: Builder, x: Value, grid: Value) -> tuple[Value, Value]:
    """x as [n, channels, places] and grid as [n, samples, dims], both in the compute dtype."""
    dtype = compute_dtype(x.dtype)
    flat = b.reshape(b.convert(x, dtype), (*x.shape[:2], math.prod(x.shape[2:])))
    return flat, b.reshape(b.convert(grid, dtype), (grid.shape[0], math.prod(grid.shape[1:-1]), grid.shape[-1]))


@lowering(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(b: Builder, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """x [n, channels, spatial...] at grid [n, out..., dims], whose values run from -1 to 1, last dim of x first."""
    shape = b.out.shape
    if not math.prod(shape) or not x.numel:
        return b.full(shape, 0, x.dtype)
    flat, places = _flat(b, x, grid)
    corners, _ = _corners(b, x, places, mode, padding, align_corners)
    total = None
    for corner in corners:
        taken = _read(b, flat, corner)
        term = taken if mode == NEAREST else b.mul(taken, b.broadcast(corner.weight, taken.shape, (0, 2)))
        total = term if total is None else b.add(total, term)
    assert total is not None
    return b.convert(b.reshape(total, shape), x.dtype)


@lowering(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    b: Builder, grad: Value, x: Value, grid: Value, mode: int, padding: int, align_corners: bool, output_mask: Sequence[bool]
) -> tuple[Value | None, Value | None]:
    """Gradients of `grid_sampler` in x and in the grid."""
    if not grad.numel or not x.numel:
        return b.full(x.shape, 0, x.dtype), b.full(grid.shape, 0, grid.dtype)
    flat, places = _flat(b, x, grid)
    corners, coordinates = _corners(b, x, places, mode, padding, align_corners)
    n, channels, count = *x.shape[:2], places.shape[1]
    grad = b.reshape(b.convert(grad, flat.dtype), (n, channels, count))
    grad_x: Value | None = None
    if output_mask[0]:
        sums = b.like(flat, 0)
        for corner in corners:
            sums = _add_at(b, sums, corner, b.mul(grad, b.broadcast(corner.weight, grad.shape, (0, 2))))
        grad_x = b.convert(b.reshape(sums, x.shape), x.dtype)
    return grad_x, _grid_gradient(b, flat, grad, corners, coordinates, mode, grid)


def _add_at(b: Builder, sums: Value, corner: Corner, updates: Value) -> Value:
    """sums [n, channels, places] with updates [n, channels, samples] added at a corner's places that lie inside."""
    place = corner.place
    if corner.inside is not None:
        # A place behind the last is dropped.
        place = b.select(b.unsqueeze(corner.inside, 2), place, b.like(place, sums.shape[2]))
    return scatter(b, sums, place, updates, "add", window_dims=[1], inserted=[2], index_map=[2], input_batching=[0], indices_batching=[0])


def _grid_gradient(
    b: Builder, flat: Value, grad: Value, corners: Sequence[Corner], coordinates: Sequence[Coordinate], mode: int, grid: Value
) -> Value:
    if mode == NEAREST:
        return b.full(grid.shape, 0, grid.dtype)
    totals: list[Any] = [None] * len(coordinates)
    for corner in corners:
        product = reduce(b, b.mul(_read(b, flat, corner), grad), (1,), "add")
        for d, slope in enumerate(corner.slopes):
            term = b.mul(product, slope)
            totals[d] = term if totals[d] is None else b.add(totals[d], term)
    columns = [b.unsqueeze(b.mul(total, coordinate.slope), 2) for total, coordinate in zip(totals, coordinates, strict=True)]
    return b.convert(b.reshape(b.concat(columns[::-1], 2), grid.shape), grid.dtype)
