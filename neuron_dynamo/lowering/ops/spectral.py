"""Singular values and Hermitian eigenvalues by one-sided Jacobi, in double where the target has it: its many rotations add up to more than
LAPACK's error in float32. Definitions: the ATen schemas. Vectors are orthonormal to rounding
also where values are equal or zero; like LAPACK's, they are one choice of many: a phase each, and a basis for equal values."""

from __future__ import annotations

import math
from typing import Any

import torch

from neuron_dynamo.lowering import matrices as mat
from neuron_dynamo.lowering.builder import Builder, Value, accurate_dtype, real_dtype
from neuron_dynamo.lowering.jacobi import orthogonalize
from neuron_dynamo.lowering.ops.householder import apply_reflectors, factor
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce, sort
from neuron_dynamo.target import Target

aten = torch.ops.aten

_LARGEST = 128
"""Columns up to which Jacobi is worth its while: its rounds grow with them, and LAPACK's blocked forms win far beyond."""


def _too_large(columns: int, target: Target) -> str | None:
    if not {"while", "sort"} <= target.ops:
        return f"{target.name} has no loops, which Jacobi needs"
    return f"{columns} columns: LAPACK on the host is faster past {_LARGEST}" if columns > _LARGEST else None


def _scale(b: Builder, x: Value) -> tuple[Value, Value]:
    """x [batch, m, n] by its largest abs, and that [batch]; a matrix of zeros by one. With NaN or inf, all is NaN."""
    size = mat.magnitude(b, x)
    largest = reduce(b, size, (1, 2), "max", init=0)
    divisor = b.select(b.compare("EQ", largest, b.like(largest, 0)), b.like(largest, 1), largest)
    finite = b.compare("LT", divisor, b.like(divisor, math.inf))
    divisor = b.select(finite, divisor, b.like(divisor, math.nan))
    return b.div(x, mat.spread(b, b.convert(divisor, x.dtype), x.shape)), divisor


def _sorted(b: Builder, values: Value, descending: bool) -> tuple[Value, Value]:
    """values [batch, n] in order, and where each came from (int32)."""
    direction = "GT" if descending else "LT"
    places = mat.position(b, values.shape, 1)
    ordered, order = sort(b, [values, places], 1, lambda x, y: b.compare(direction, x[0], y[0]))
    return ordered, order


def _columns(b: Builder, x: Value, order: Value) -> Value:
    return mat.transposed(b, mat.take_rows(b, mat.transposed(b, x), order))


def _guard_svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None, target: Target) -> str | None:
    return "driver= is of CUDA alone" if driver is not None else _too_large(min(a.shape[-2:]), target)


@lowering(aten._linalg_svd.default, guard=_guard_svd)
def linalg_svd(
    b: Builder, a: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Value, Value, Value]:
    """U [..., m, k or m], S [..., k] descending, V^H [..., k or n, n], k = min(m, n); U and V^H are empty unless compute_uv."""
    shapes = [spec.shape for spec in b.outs if spec is not None]
    kind = real_dtype(a.dtype)
    matrix = b.convert(mat.flat(b, a), accurate_dtype(a.dtype, b.target))
    wide = a.shape[-2] < a.shape[-1]
    batch, m, n = (mat.transposed(b, matrix) if wide else matrix).shape
    if n == 0 or not batch:
        s = b.full((batch, n), 0, kind)
        u, v = mat.eye(b, (batch, m, m if full_matrices else n), a.dtype), mat.eye(b, (batch, n, n), a.dtype)
    else:
        x, scale = _scale(b, mat.adjoint(b, matrix) if wide else matrix)
        x, v = orthogonalize(b, x)
        size = mat.magnitude(b, x)
        s, order = _sorted(b, b.unary("sqrt", reduce(b, b.mul(size, size), (1,), "add")), descending=True)
        if compute_uv:
            u, v = _left_vectors(b, _columns(b, x, order), m if full_matrices else n), _columns(b, v, order)
        s = b.mul(s, mat.spread(b, scale, s.shape))
    values = b.convert(b.reshape(s, shapes[1]), kind)
    if not compute_uv:
        return b.full(shapes[0], 0, a.dtype), values, b.full(shapes[2], 0, a.dtype)
    if wide:
        u, v = v, u
    u, v = b.convert(u, a.dtype), b.convert(v, a.dtype)
    return b.reshape(u, shapes[0]), values, b.reshape(mat.adjoint(b, v), shapes[2])


def _left_vectors(b: Builder, x: Value, count: int) -> Value:
    """Orthonormal columns [batch, m, count], the first n in the direction of x's [batch, m, n], which are orthogonal, the largest first.

    The Q of x's QR, with the signs of R's diagonal: where a column of x is zero, Q has some direction that is left.
    """
    batch, m, n = x.shape
    r, taus = factor(b, x)
    q = apply_reflectors(b, r, taus, mat.eye(b, (batch, m, count), x.dtype), adjoint=False)
    places = [mat.position(b, r.shape[1:], d) for d in range(2)]
    on_diagonal = b.expand(b.compare("EQ", *places), r.shape)
    diagonal = mat.real_part(b, mat.select_row(b, on_diagonal, r))
    negative = b.compare("LT", diagonal, b.like(diagonal, 0))
    negative = b.pad(negative, False, [0, 0], [0, count - n])
    return b.select(mat.spread(b, negative, q.shape, (0, 2)), b.neg(q), q)


def _guard_eigh(a: Any, *_: Any, target: Target, **__: Any) -> str | None:
    return _too_large(a.shape[-1], target)


@lowering(aten._linalg_eigh.default, guard=_guard_eigh)
def linalg_eigh(b: Builder, a: Value, UPLO: str = "L", compute_v: bool = True) -> tuple[Value, Value]:  # noqa: N803
    """Eigenvalues [..., n] ascending and eigenvectors [..., n, n] of the Hermitian matrix of which one triangle is read.

    The singular vectors of a + shift, which is positive and well conditioned, are a's eigenvectors; Rayleigh quotients with a itself
    are its eigenvalues.
    """
    shapes = [spec.shape for spec in b.outs if spec is not None]
    kind = real_dtype(a.dtype)
    if not a.numel:
        return b.full(shapes[0], 0, kind), b.full(shapes[1], 0, a.dtype)
    given = b.convert(mat.flat(b, a), accurate_dtype(a.dtype, b.target))
    strict = mat.triangle(b, given, UPLO.upper() == "L", -1 if UPLO.upper() == "L" else 1)
    unit = mat.eye(b, strict.shape, given.dtype)
    diagonal = b.mul(unit, b.convert(mat.real_part(b, given), given.dtype))
    matrix, scale = _scale(b, b.add(b.add(strict, mat.adjoint(b, strict)), diagonal))
    size = mat.magnitude(b, matrix)
    radius = reduce(b, reduce(b, size, (1,), "add"), (1,), "max", init=0)  # 1-norm, no less than any eigenvalue's abs
    shift = b.add(radius, b.mul(radius, b.like(radius, 0.5)))
    shift = b.select(b.compare("EQ", shift, b.like(shift, 0)), b.like(shift, 1), shift)
    _, v = orthogonalize(b, b.add(matrix, b.mul(unit, mat.spread(b, b.convert(shift, given.dtype), unit.shape))))
    quotients = reduce(b, mat.real_part(b, b.mul(mat.conj(b, v), mat.matmul(b, matrix, v))), (1,), "add")
    values, order = _sorted(b, quotients, descending=False)
    values = b.reshape(b.convert(b.mul(values, mat.spread(b, scale, values.shape)), kind), shapes[0])
    vectors = b.reshape(b.convert(_columns(b, v, order), a.dtype), shapes[1]) if compute_v else b.full(shapes[1], 0, a.dtype)
    return values, vectors
