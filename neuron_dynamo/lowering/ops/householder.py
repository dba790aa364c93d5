"""QR factors as Householder reflectors, and their products. Definitions: the ATen schemas and LAPACK's geqr2, larfg, org2r, orm2r
(so that signs equal theirs): H = I - tau v v^H with v = (0 .. 0, 1, stored entries), Q = H_0 H_1 ..."""

from __future__ import annotations

import math
from typing import Any

import torch

from neuron_dynamo.lowering import matrices as mat
from neuron_dynamo.lowering.builder import Builder, Value, real_dtype
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce
from neuron_dynamo.target import Target

aten = torch.ops.aten


def _norm(b: Builder, x: Value) -> Value:
    """2-norm of the rows of x [batch, n], scaled so that squares neither overflow nor vanish."""
    size = mat.magnitude(b, x)
    largest = reduce(b, size, (1,), "max", init=0)
    usable = mat.both(b, b.compare("GT", largest, b.like(largest, 0)), b.compare("LT", largest, b.like(largest, math.inf)))
    scale = b.select(usable, largest, b.like(largest, 1))
    scaled = b.div(size, mat.spread(b, scale, size.shape))
    return b.mul(scale, b.unary("sqrt", reduce(b, b.mul(scaled, scaled), (1,), "add")))


def _reflector(b: Builder, column: Value, step: Value) -> tuple[Value, Value, Value]:
    """For column [batch, m]: v [batch, m], tau and beta [batch], with H^H column = (above, beta, 0 ..)."""
    kind = real_dtype(column.dtype)
    place = mat.position(b, column.shape, 1)
    tail = mat.where(b, mat.after(b, place, step), column)
    head = mat.one_at(b, column, 1, step)
    rest = _norm(b, tail)
    zero = b.like(rest, 0)
    real = mat.real_part(b, head)
    imag = b.emit("imag", [head], head.shape, kind) if column.dtype.is_complex else None
    parts = [b.unsqueeze(part, 1) for part in (rest, real, imag) if part is not None]
    length = _norm(b, b.concat(parts, 1))
    beta = b.select(b.compare("GE", real, zero), b.neg(length), length)
    none = b.compare("EQ", rest, zero)
    if imag is not None:
        none = mat.both(b, none, b.compare("EQ", imag, zero))
    safe = b.select(none, b.like(beta, 1), beta)
    tau = b.div(b.sub(beta, real), safe)
    if imag is not None:
        tau = b.emit("complex", [tau, b.neg(b.div(imag, safe))], tau.shape, column.dtype)
    tau = b.select(none, b.like(tau, 0), tau)
    result = b.convert(beta, column.dtype)
    divisor = b.select(none, b.like(head, 1), b.sub(head, result))
    v = b.div(tail, mat.spread(b, divisor, tail.shape))
    v = b.select(mat.at(b, place, step), b.like(v, 1), v)
    return v, tau, b.select(none, head, result)


def _reflect(b: Builder, c: Value, v: Value, tau: Value) -> Value:
    """(I - tau v v^H) c, of c [batch, m, n]."""
    along = dot_general(b, mat.conj(b, v), c, ((1,), (1,)), ((0,), (0,)))
    along = b.mul(along, mat.spread(b, tau, along.shape))
    return b.sub(c, b.mul(mat.spread(b, v, c.shape, (0, 1)), mat.spread(b, along, c.shape, (0, 2))))


def _guard_factor(a: Any, *, target: Target) -> str | None:
    return mat.too_many_steps(min(a.shape[-2:]), target)


@lowering(aten.geqrf.default, guard=_guard_factor)
def geqrf(b: Builder, a: Value) -> tuple[Value, Value]:
    """R on and above the diagonal of [..., m, n], the stored entries of the reflectors below it; tau [..., min(m, n)]."""
    r, taus = factor(b, mat.flat(b, a))
    return b.reshape(r, a.shape), b.reshape(taus, (*a.shape[:-2], min(a.shape[-2:])))


def factor(b: Builder, matrix: Value) -> tuple[Value, Value]:
    """geqrf of matrix [batch, m, n]."""
    batch, m, n = matrix.shape
    steps = min(m, n)

    def eliminate(step: Value, values: list[Value]) -> list[Value]:
        r, taus = values
        column = mat.one_at(b, r, 2, step)
        v, tau, beta = _reflector(b, column, step)
        reflected = _reflect(b, r, v, mat.conj(b, tau))
        later = mat.after(b, mat.position(b, r.shape, 2), step)
        place = mat.position(b, column.shape, 1)
        new = b.select(mat.after(b, place, step), v, column)
        new = b.select(mat.at(b, place, step), mat.spread(b, beta, new.shape), new)
        return [mat.put_at(b, b.select(later, reflected, r), new, 2, step), mat.put_at(b, taus, tau, 1, step)]

    start = [matrix, b.full((batch, steps), 0, matrix.dtype)]
    r, taus = mat.counted(b, steps, start, eliminate) if matrix.numel else start
    return r, taus


def apply_reflectors(b: Builder, stored: Value, taus: Value, c: Value, *, adjoint: bool) -> Value:
    """Q c, or Q^H c, with the reflectors in stored [batch, m, k'] and taus [batch, k], k <= k'."""
    steps = taus.shape[1]
    if not steps or not c.numel:
        return c
    vectors = b.slice_dim(stored, 2, 0, steps)
    vectors = b.add(mat.triangle(b, vectors, lower=True, diagonal=-1), mat.eye(b, vectors.shape, vectors.dtype))
    taus = mat.conj(b, taus) if adjoint else taus

    def reflect(step: Value, values: list[Value]) -> list[Value]:
        if not adjoint:
            step = b.sub(b.scalar(steps - 1, mat.INDEX), step)
        return [_reflect(b, values[0], mat.one_at(b, vectors, 2, step), mat.one_at(b, taus, 1, step))]

    return mat.counted(b, steps, [c], reflect)[0]


def _guard_product(stored: Any, tau: Any, *, target: Target) -> str | None:
    return mat.too_many_steps(tau.shape[-1], target)


@lowering(aten.linalg_householder_product.default, guard=_guard_product)
def linalg_householder_product(b: Builder, stored: Value, tau: Value) -> Value:
    """The first n columns of Q, for stored [..., m, n]."""
    matrix = mat.flat(b, stored)
    q = apply_reflectors(b, matrix, mat.flat(b, tau, 1), mat.eye(b, matrix.shape, stored.dtype), adjoint=False)
    return b.reshape(q, b.out.shape)


def _guard_ormqr(stored: Any, tau: Any, c: Any, left: bool = True, transpose: bool = False, *, target: Target) -> str | None:
    return mat.too_many_steps(tau.shape[-1], target)


@lowering(aten.ormqr.default, guard=_guard_ormqr)
def ormqr(b: Builder, stored: Value, tau: Value, c: Value, left: bool = True, transpose: bool = False) -> Value:
    """Q c, or c Q where not `left`; `transpose` takes Q^H for Q."""
    matrix, taus, other = mat.flat(b, stored), mat.flat(b, tau, 1), mat.flat(b, c)
    if left:
        result = apply_reflectors(b, matrix, taus, other, adjoint=transpose)
    else:
        result = mat.adjoint(b, apply_reflectors(b, matrix, taus, mat.adjoint(b, other), adjoint=not transpose))
    return b.reshape(result, b.out.shape)
