"""LU factorization with partial pivoting and what is solved with it. Definitions: the ATen schemas, and LAPACK's getrf for the
order of pivots: the first entry of largest abs (complex: of largest abs(real) + abs(imag))."""

from __future__ import annotations

from typing import Any

import torch

from neuron_dynamo.lowering import matrices as mat
from neuron_dynamo.lowering.builder import Builder, Value, real_dtype
from neuron_dynamo.lowering.ops.triangular_solve import solve
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce
from neuron_dynamo.target import Target

aten = torch.ops.aten


def _size(b: Builder, x: Value) -> Value:
    """What getrf compares when it looks for a pivot."""
    if not x.dtype.is_complex:
        return b.unary("abs", x)
    real, imag = (b.emit(part, [x], x.shape, real_dtype(x.dtype)) for part in ("real", "imag"))
    return b.add(b.unary("abs", real), b.unary("abs", imag))


def _pivot_row(b: Builder, column: Value, step: Value) -> Value:
    """Row at or below `step` of the first largest entry of column [batch, m]; `step` itself where all are NaN."""
    place = mat.position(b, column.shape, 1)
    size = _size(b, column)
    above = b.compare("LT", place, mat.spread(b, step, place.shape))
    size = b.select(b.binary("or", above, b.is_nan(size)), b.like(size, -1), size)
    largest = b.compare("EQ", size, mat.spread(b, reduce(b, size, (1,), "max"), size.shape))
    first = reduce(b, b.select(largest, place, b.like(place, column.shape[1])), (1,), "min")
    return b.max(first, mat.spread(b, step, first.shape))


def _guard(a: Any, *, pivot: bool = True, check_errors: bool = False, target: Target) -> str | None:
    if not pivot:
        return "LU without pivoting: ATen refuses it on the CPU"
    if check_errors:
        return "check_errors=True raises inside the op"
    return mat.too_many_steps(min(a.shape[-2:]), target)


@lowering(aten.linalg_lu_factor_ex.default, guard=_guard)
def linalg_lu_factor_ex(b: Builder, a: Value, *, pivot: bool = True, check_errors: bool = False) -> tuple[Value, Value, Value]:
    """L (below the diagonal, its ones not stored) and U in one [..., m, n]; pivots [..., min(m, n)], the 1-based row exchanged with
    each; info [...], the order of U's first zero on the diagonal, or 0."""
    matrix = mat.flat(b, a)
    batch, m, n = matrix.shape
    steps = min(m, n)

    def eliminate(step: Value, values: list[Value]) -> list[Value]:
        lu, pivots, info = values
        other = _pivot_row(b, mat.one_at(b, lu, 2, step), step)
        rows, columns = (mat.position(b, lu.shape, d) for d in (1, 2))
        at_other = mat.at(b, rows, other)
        pivot_row, current = mat.select_row(b, at_other, lu), mat.one_at(b, lu, 1, step)
        lu = b.select(at_other, mat.spread(b, current, lu.shape, (0, 2)), lu)
        lu = b.select(mat.at(b, rows, step), mat.spread(b, pivot_row, lu.shape, (0, 2)), lu)
        head = mat.one_at(b, pivot_row, 1, step)
        zero = b.compare("EQ", head, b.like(head, 0))
        divisor = mat.spread(b, b.select(zero, b.like(head, 1), head), (batch, m))
        column = b.div(mat.one_at(b, lu, 2, step), divisor)
        column = mat.where(b, mat.after(b, mat.position(b, column.shape, 1), step), column)
        tail = mat.where(b, mat.after(b, mat.position(b, pivot_row.shape, 1), step), pivot_row)
        product = b.mul(mat.spread(b, column, lu.shape, (0, 1)), mat.spread(b, tail, lu.shape, (0, 2)))
        rest = b.select(mat.both(b, mat.after(b, rows, step), mat.after(b, columns, step)), b.sub(lu, product), lu)
        below = mat.both(b, mat.after(b, rows, step), mat.at(b, columns, step))
        lu = b.select(below, mat.spread(b, column, lu.shape, (0, 1)), rest)
        one = b.scalar(1, mat.INDEX)
        order = mat.spread(b, b.add(step, one), info.shape)
        failed = mat.both(b, zero, b.compare("EQ", info, b.like(info, 0)))
        pivots = mat.put_at(b, pivots, b.add(other, b.like(other, 1)), 1, step)
        return [lu, pivots, b.select(failed, order, info)]

    start = [matrix, b.full((batch, steps), 0, mat.INDEX), b.full((batch,), 0, mat.INDEX)]
    lu, pivots, info = mat.counted(b, steps, start, eliminate) if a.numel else start
    lead = a.shape[:-2]
    return b.reshape(lu, a.shape), b.reshape(pivots, (*lead, steps)), b.reshape(info, lead)


def _rows(b: Builder, pivots: Value, m: int, *, inverse: bool = False) -> Value:
    """Which row of 0 .. m - 1 comes to each place when rows are exchanged by pivots [batch, k], or the inverse of that: [batch, m]."""
    batch, steps = pivots.shape

    def exchange(step: Value, values: list[Value]) -> list[Value]:
        (order,) = values
        if inverse:
            step = b.sub(b.scalar(steps - 1, mat.INDEX), step)
        other = mat.one_at(b, pivots, 1, step)
        other = b.sub(other, b.like(other, 1))
        place = mat.position(b, order.shape, 1)
        at_other = mat.at(b, place, other)
        mine, theirs = mat.one_at(b, order, 1, step), mat.select_row(b, at_other, order)
        order = b.select(at_other, mat.spread(b, mine, order.shape), order)
        return [b.select(mat.at(b, place, step), mat.spread(b, theirs, order.shape), order)]

    return mat.counted(b, steps, [mat.position(b, (batch, m), 1)], exchange)[0]


def _guard_unpack(lu: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True, *, target: Target) -> str | None:
    return mat.too_many_steps(pivots.shape[-1], target) if unpack_pivots else None


@lowering(aten.lu_unpack.default, guard=_guard_unpack)
def lu_unpack(b: Builder, lu: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Value | None, ...]:
    """P [..., m, m], L [..., m, k] and U [..., k, n], k = min(m, n), with P L U the matrix; what is not asked for is empty."""
    shapes = [spec.shape if spec is not None else (0,) for spec in b.outs]
    m, n = lu.shape[-2:]
    results: list[Value] = [b.full(shape, 0, lu.dtype) for shape in shapes]
    if unpack_pivots and results[0].numel:
        order = _rows(b, mat.flat(b, pivots, 1), m)
        square = (order.shape[0], m, m)
        hits = b.compare("EQ", mat.position(b, square, 1), mat.spread(b, order, square, (0, 2)))
        results[0] = b.reshape(b.convert(hits, lu.dtype), shapes[0])
    if unpack_data:
        k = min(m, n)
        flat = mat.flat(b, lu)
        left = mat.triangle(b, b.slice_dim(flat, 2, 0, k), lower=True, diagonal=-1)
        results[1] = b.reshape(b.add(left, mat.eye(b, left.shape, lu.dtype)), shapes[1])
        results[2] = b.reshape(mat.triangle(b, b.slice_dim(flat, 1, 0, k), lower=False), shapes[2])
    return tuple(results)


def _guard_solve(lu: Any, pivots: Any, y: Any, *, left: bool = True, adjoint: bool = False, target: Target) -> str | None:
    return mat.too_many_steps(lu.shape[-1], target)


@lowering(aten.linalg_lu_solve.default, guard=_guard_solve)
def linalg_lu_solve(b: Builder, lu: Value, pivots: Value, y: Value, *, left: bool = True, adjoint: bool = False) -> Value:
    """x with a x = y (left) or x a = y, where a, or its adjoint, has the factors `lu` and `pivots`; batch dims broadcast."""
    shape = b.out.shape
    if not b.out.shape or not y.numel or 0 in shape:
        return b.full(shape, 0, b.out.dtype)
    lead = shape[:-2]
    factors, sides = mat.flat_to(b, lu, lead), mat.flat_to(b, y, lead)
    exchanged = mat.flat_to(b, pivots, lead, 1)
    if not left:
        sides, adjoint = mat.adjoint(b, sides), not adjoint
    n = lu.shape[-1]
    if adjoint:
        upper = mat.adjoint(b, factors)
        x = solve(b, upper, sides, lower=True)
        x = solve(b, upper, x, lower=False, unit=True)
        x = mat.take_rows(b, x, _rows(b, exchanged, n, inverse=True))
    else:
        x = mat.take_rows(b, sides, _rows(b, exchanged, n))
        x = solve(b, factors, x, lower=True, unit=True)
        x = solve(b, factors, x, lower=False)
    return b.reshape(x if left else mat.adjoint(b, x), shape)
