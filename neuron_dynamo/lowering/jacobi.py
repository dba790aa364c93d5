"""One-sided Jacobi: rotations of columns until all are orthogonal (Hestenes), in the parallel order of a round-robin tournament,
so that a sweep over n columns is n - 1 rounds of n / 2 rotations at once. After Demmel & Veselic, "Jacobi's method is more accurate
than QR"; thresholds as in LAPACK's gesvj.
"""

from __future__ import annotations

import math

import torch

from neuron_dynamo.lowering import matrices as mat
from neuron_dynamo.lowering.builder import Builder, Value, real_dtype
from neuron_dynamo.lowering.structured import reduce, while_loop

_MOST_SWEEPS = 30


def orthogonalize(b: Builder, x: Value) -> tuple[Value, Value]:
    """(x v, v) for x [batch, m, n], n >= 1, with v unitary [batch, n, n], such that the columns of x v are orthogonal.

    Columns within a rounding error of the largest one's norm are left as they are: they stand for zeros. Entries of x must be of
    ordinary size (their squares neither overflow nor vanish): scale them first.
    """
    batch, m, n = x.shape
    v = mat.eye(b, (batch, n, n), x.dtype)
    if n == 1:
        return x, v
    stacked = b.concat([x, v], 1)
    if n % 2:
        stacked = b.pad(stacked, 0, [0, 0, 0], [0, 0, 1])  # a zero column, which no rotation touches
    half = (n + 1) // 2
    kind = real_dtype(x.dtype)
    norms = reduce(b, _squares(b, x), (1,), "add")
    floor = b.mul(reduce(b, norms, (1,), "max", init=0), b.full((batch,), (torch.finfo(kind).eps / 4) ** 2, kind))
    tolerance = torch.finfo(kind).eps * math.sqrt(m)

    def round_of_pairs(step: Value, values: list[Value]) -> list[Value]:
        left, right, rotated = values
        left, right, any_rotation = _rotate(b, left, right, m, floor, tolerance)
        rotated = b.binary("or", rotated, any_rotation)
        if half > 1:
            left, right = (
                b.concat([b.slice_dim(left, 2, 0, 1), b.slice_dim(right, 2, 0, 1), b.slice_dim(left, 2, 1, half - 1)], 2),
                b.concat([b.slice_dim(right, 2, 1, half), b.slice_dim(left, 2, half - 1, half)], 2),
            )
        return [left, right, rotated]

    def sweep(values: list[Value]) -> list[Value]:
        count, _, left, right = values
        left, right, rotated = mat.counted(b, 2 * half - 1, [left, right, b.scalar(False, torch.bool)], round_of_pairs)
        return [b.add(count, b.scalar(1, mat.INDEX)), rotated, left, right]

    def unfinished(values: list[Value]) -> Value:
        return mat.both(b, values[1], b.compare("LT", values[0], b.scalar(_MOST_SWEEPS, mat.INDEX)))

    parts = [b.slice_dim(stacked, 2, 0, half), b.slice_dim(stacked, 2, half, 2 * half)]
    _, _, left, right = while_loop(b, [b.scalar(0, mat.INDEX), b.scalar(True, torch.bool), *parts], unfinished, sweep)
    # A whole sweep brings every column back to its place.
    stacked = b.slice_dim(b.concat([left, right], 2), 2, 0, n)
    return b.slice_dim(stacked, 1, 0, m), b.slice_dim(stacked, 1, m, m + n)


def _squares(b: Builder, x: Value) -> Value:
    size = mat.magnitude(b, x)
    return b.mul(size, size)


def _rotate(b: Builder, left: Value, right: Value, m: int, floor: Value, tolerance: float) -> tuple[Value, Value, Value]:
    """Columns of left and right [batch, m + n, n / 2], rotated in pairs so that their first m entries are orthogonal; and whether any
    pair was not so before, to `tolerance`. floor [batch] is the square of a norm that stands for zero."""
    x, y = b.slice_dim(left, 1, 0, m), b.slice_dim(right, 1, 0, m)
    alpha, beta = (reduce(b, _squares(b, part), (1,), "add") for part in (x, y))
    gamma = reduce(b, b.mul(mat.conj(b, x), y), (1,), "add")
    size = mat.magnitude(b, gamma)
    bound = b.mul(b.mul(b.unary("sqrt", alpha), b.unary("sqrt", beta)), b.like(alpha, tolerance))
    needed = mat.both(b, b.compare("GT", size, bound), b.compare("GT", b.min(alpha, beta), mat.spread(b, floor, alpha.shape)))
    one = b.like(size, 1)
    safe = b.select(needed, size, one)
    zeta = b.div(b.sub(beta, alpha), b.add(safe, safe))
    size_of_zeta = b.unary("abs", zeta)
    # 1 / (|zeta| + sqrt(1 + zeta^2)) without overflow of the square
    large = b.compare("GT", size_of_zeta, b.like(zeta, 1 / torch.finfo(zeta.dtype).eps))
    bounded = b.select(large, one, size_of_zeta)
    root = b.select(large, size_of_zeta, b.unary("sqrt", b.add(one, b.mul(bounded, bounded))))
    tangent = b.div(one, b.add(size_of_zeta, root))
    tangent = b.select(b.compare("LT", zeta, b.like(zeta, 0)), b.neg(tangent), tangent)
    cosine = b.div(one, b.unary("sqrt", b.add(one, b.mul(tangent, tangent))))
    sine = b.mul(cosine, tangent)
    cosine, sine = b.select(needed, cosine, one), mat.where(b, needed, sine)
    kind = left.dtype
    # right times the conjugate of gamma's phase makes the products real
    phase = b.div(b.select(needed, mat.conj(b, gamma), b.convert(one, kind)), b.convert(safe, kind))
    wide = left.shape
    c, s, turn = (mat.spread(b, b.convert(part, kind), wide, (0, 2)) for part in (cosine, sine, phase))
    turned = b.mul(right, turn)
    rotated = b.sub(b.mul(c, left), b.mul(s, turned)), b.add(b.mul(s, left), b.mul(c, turned))
    return *rotated, reduce(b, needed, (0, 1), "or")
