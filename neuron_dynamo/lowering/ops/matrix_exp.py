"""Matrix exponential by scaling and squaring of a Taylor polynomial of degree 18, the highest that ATen's kernel uses.

Source: P. Bader, S. Blanes, F. Casas, "Computing the matrix exponential with an optimized Taylor polynomial approximation",
Mathematics 7 (2019), whose bounds on the 1-norm for degree 18 are used; the polynomial is evaluated by Paterson and Stockmeyer's scheme.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from neuron_dynamo.lowering import matrices as mat
from neuron_dynamo.lowering.builder import Builder, Value, accurate_dtype, real_dtype
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce, while_loop
from neuron_dynamo.target import Target

aten = torch.ops.aten

_DEGREE, _BLOCK = 18, 5
_BOUND = {torch.float32: 3.010066362817634, torch.float64: 1.090863719290036}


def _guard(a: Any, *, target: Target) -> str | None:
    if "while" in target.ops or a.numel() == 0 or a.shape[-1] == 1:
        return None
    return f"it is squared as often as its norm asks, and {target.name} has no loops"


@lowering(aten.linalg_matrix_exp.default, guard=_guard)
def linalg_matrix_exp(b: Builder, a: Value) -> Value:
    """exp of [..., n, n] matrices."""
    if a.numel == 0:
        return a
    dtype = accurate_dtype(a.dtype, b.target)  # each squaring doubles the relative error of what was rounded before
    matrix = mat.flat(b, b.convert(a, dtype))
    if a.shape[-1] == 1:
        return b.convert(b.reshape(b.unary("exponential", matrix), a.shape), a.dtype)
    times = _squarings(b, matrix)
    scale = b.unary("exponential", b.mul(b.convert(times, real_dtype(dtype)), b.full(times.shape, -math.log(2), real_dtype(dtype))))
    scale = b.unary("round_nearest_even", b.div(b.like(scale, 1), scale))  # 2^times, exactly
    result = _taylor(b, b.div(matrix, mat.spread(b, b.convert(scale, dtype), matrix.shape)))
    most = reduce(b, times, (0,), "max")

    def square(values: list[Value]) -> list[Value]:
        step, x = values
        going = b.compare("GT", times, mat.spread(b, step, times.shape))
        return [b.add(step, b.scalar(1, mat.INDEX)), b.select(mat.spread(b, going, x.shape), mat.matmul(b, x, x), x)]

    _, result = while_loop(b, [b.scalar(0, mat.INDEX), result], lambda values: b.compare("LT", values[0], most), square)
    return b.convert(b.reshape(result, a.shape), a.dtype)


def _squarings(b: Builder, matrix: Value) -> Value:
    """How often each matrix must be halved to come under the bound: int32 [batch]. 0 for a norm that is not finite."""
    size = mat.magnitude(b, matrix)
    norm = reduce(b, reduce(b, size, (1,), "add"), (1,), "max")
    ratio = b.div(norm, b.like(norm, _BOUND[norm.dtype]))
    halvings = b.unary("ceil", b.div(b.unary("log", ratio), b.like(norm, math.log(2))))
    wanted = b.compare("GT", ratio, b.like(ratio, 1))
    finite = b.compare("LT", norm, b.like(norm, math.inf))
    return b.convert(b.select(mat.both(b, wanted, finite), halvings, b.like(halvings, 0)), mat.INDEX)


def _taylor(b: Builder, x: Value) -> Value:
    """The polynomial sum x^i / i!, i = 0 .. 18, in blocks of five powers."""
    batch, n, _ = x.shape
    place = [mat.position(b, (batch, n, n), d) for d in (1, 2)]
    powers = [b.convert(b.compare("EQ", *place), x.dtype), x]
    while len(powers) <= _BLOCK:
        powers.append(mat.matmul(b, powers[-1], x))
    result: Value | None = None
    for low in range(_DEGREE - _DEGREE % _BLOCK, -1, -_BLOCK):
        terms = [b.mul(powers[i], b.like(x, 1 / math.factorial(low + i))) for i in range(min(_BLOCK, _DEGREE + 1 - low))]
        block = terms[0]
        for term in terms[1:]:
            block = b.add(block, term)
        result = block if result is None else b.add(block, mat.matmul(b, result, powers[_BLOCK]))
    assert result is not None
    return result
