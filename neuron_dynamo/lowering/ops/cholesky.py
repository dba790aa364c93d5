"""Cholesky factor, column by column. Definitions: the ATen schema, and LAPACK's potrf (potf2, left-looking) for what it leaves
of a matrix that is not positive definite."""

from __future__ import annotations

from typing import Any

import torch

from neuron_dynamo.lowering import matrices as mat
from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.target import Target

aten = torch.ops.aten


def _guard(a: Any, *, target: Target, upper: bool = False, check_errors: bool = False) -> str | None:
    return "check_errors=True raises inside the op" if check_errors else mat.too_many_steps(a.shape[-1], target)


@lowering(aten.linalg_cholesky_ex.default, guard=_guard)
def linalg_cholesky_ex(b: Builder, a: Value, *, upper: bool = False, check_errors: bool = False) -> tuple[Value, Value]:
    """L [..., n, n] with L L^H = a (upper: U^H U), read from that triangle of a, and info [...]: 0, or the order of the first
    leading minor that is not positive, where the factorization stopped."""
    matrix = mat.flat(b, a)
    batch, n, _ = matrix.shape
    matrix = mat.triangle(b, mat.adjoint(b, matrix) if upper else matrix, lower=True)

    def column(step: Value, values: list[Value]) -> list[Value]:
        factor, info = values
        place = mat.position(b, (batch, n), 1)
        before = b.compare("LT", place, mat.spread(b, step, place.shape))
        row = mat.where(b, before, mat.one_at(b, factor, 1, step))
        done = dot_general(b, factor, mat.conj(b, row), ((2,), (1,)), ((0,), (0,)))
        current = mat.one_at(b, factor, 2, step)
        rest = b.sub(current, done)
        pivot = mat.real_part(b, mat.one_at(b, rest, 1, step))
        positive = b.compare("GT", pivot, b.like(pivot, 0))
        root = b.unary("sqrt", pivot)
        new = b.div(rest, mat.spread(b, b.convert(root, a.dtype), rest.shape))
        new = b.select(mat.at(b, place, step), mat.spread(b, b.convert(root, a.dtype), new.shape), mat.where(b, b.logical_not(before), new))
        running = b.compare("EQ", info, b.like(info, 0))
        new = b.select(mat.spread(b, mat.both(b, running, positive), new.shape), new, current)
        failed = mat.both(b, running, b.logical_not(positive))
        order = mat.spread(b, b.add(step, b.scalar(1, mat.INDEX)), info.shape)
        return [mat.put_at(b, factor, new, 2, step), b.select(failed, order, info)]

    factor, info = mat.counted(b, n, [matrix, b.full((batch,), 0, mat.INDEX)], column)
    factor = mat.adjoint(b, factor) if upper else factor
    return b.reshape(factor, a.shape), b.reshape(info, a.shape[:-2])
