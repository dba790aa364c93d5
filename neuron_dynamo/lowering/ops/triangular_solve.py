"""Systems with a triangular matrix: stablehlo.triangular_solve, or substitution row by row. Definition: the ATen schema."""

from __future__ import annotations

from typing import Any

import torch

from neuron_dynamo.lowering import matrices as mat
from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import triangular_solve
from neuron_dynamo.target import Target

aten = torch.ops.aten


def solve(b: Builder, a: Value, y: Value, *, lower: bool, unit: bool = False) -> Value:
    """x with a x = y, of which only a triangle is read (unit: and ones for its diagonal). a [batch, n, n], y [batch, n, k]."""
    if not y.numel:
        return y
    if "triangular_solve" in b.target.ops:
        return triangular_solve(b, a, y, lower=lower, unit=unit)
    n = a.shape[-1]
    strict = mat.triangle(b, a, lower, -1 if lower else 1)

    def row(step: Value, values: list[Value]) -> list[Value]:
        (x,) = values
        step = step if lower else b.sub(b.scalar(n - 1, mat.INDEX), step)
        known = dot_general(b, mat.one_at(b, strict, 1, step), x, ((1,), (1,)), ((0,), (0,)))
        rest = b.sub(mat.one_at(b, y, 1, step), known)
        if not unit:
            pivot = mat.one_at(b, mat.one_at(b, a, 1, step), 1, step)
            rest = b.div(rest, mat.spread(b, pivot, rest.shape))
        return [mat.put_at(b, x, rest, 1, step)]

    return mat.counted(b, n, [b.like(y, 0)], row)[0]


def _guard(a: Any, y: Any, *, upper: bool, left: bool = True, unitriangular: bool = False, target: Target) -> str | None:
    return None if "triangular_solve" in target.ops else mat.too_many_steps(a.shape[-1], target)


@lowering(aten.linalg_solve_triangular.default, guard=_guard)
def linalg_solve_triangular(b: Builder, a: Value, y: Value, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Value:
    """x with a x = y (left) or x a = y; batch dims broadcast."""
    lead = b.out.shape[:-2]
    matrix, sides = mat.flat_to(b, a, lead), mat.flat_to(b, y, lead)
    if left:
        x = solve(b, matrix, sides, lower=not upper, unit=unitriangular)
    else:
        x = mat.transposed(b, solve(b, mat.transposed(b, matrix), mat.transposed(b, sides), lower=upper, unit=unitriangular))
    return b.reshape(x, b.out.shape)
