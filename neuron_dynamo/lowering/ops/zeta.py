"""Hurwitz's zeta function and the derivatives of digamma, which are multiples of it."""

from __future__ import annotations

import math
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.loops import needs_while
from neuron_dynamo.lowering.ops.elementwise import widened
from neuron_dynamo.lowering.ops.special import digamma
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce, while_loop
from neuron_dynamo.target import Target

aten = torch.ops.aten

_BERNOULLI = (
    1 / 6,
    -1 / 30,
    1 / 42,
    -1 / 30,
    5 / 66,
    -691 / 2730,
    7 / 6,
    -3617 / 510,
    43867 / 798,
    -174611 / 330,
    854513 / 138,
    -236364091 / 2730,
)
"""B_2, B_4 ... B_24."""


@lowering(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar, guard=needs_while)
def special_zeta(b: Builder, x: Value | Scalar, q: Value | Scalar) -> Value:
    """Sum over k >= 0 of (k + q)^-x."""
    left, right = together(b, [x, q], _inner_dtype(b, b.out.dtype))
    return b.convert(_zeta(b, left, right), b.out.dtype)


def _inner_dtype(b: Builder, dtype: torch.dtype) -> torch.dtype:
    """Float64 where the target has it, as in ATen's CPU kernel: below zero the sum cancels."""
    return torch.float64 if torch.float64 in b.target.dtypes else compute_dtype(dtype)


def _zeta(b: Builder, x: Value, q: Value) -> Value:
    """Terms up to k + q > 9, at least nine, then the Euler-Maclaurin formula (DLMF 25.11.5) with twelve corrections, each part
    cut off where its terms no longer count: the Cephes Math Library's routine zeta (S. Moshier)."""
    one, zero = b.like(x, 1), b.like(x, 0)
    below = b.compare("LE", q, zero)
    pole = b.binary("and", below, b.compare("EQ", q, b.unary("floor", q)))
    undefined = b.binary("and", below, b.compare("NE", x, b.unary("floor", x)))
    undefined = b.binary("or", undefined, b.compare("LT", x, one))
    exponent = b.neg(x)
    started = b.binary("or", b.binary("or", pole, undefined), b.is_nan(q))

    def tiny(term: Value, total: Value) -> Value:
        bound = b.mul(total, b.like(total, torch.finfo(x.dtype).eps / 2))
        return b.binary("and", b.compare("LT", b.neg(bound), term), b.compare("LT", term, bound))

    def going(count: Value, place: Value, done: Value) -> Value:
        few = b.broadcast(b.compare("LT", count, b.like(count, 9)), place.shape, ())
        return b.binary("and", b.logical_not(done), b.binary("or", few, b.compare("LE", place, b.like(place, 9))))

    def more(carried: list[Value]) -> Value:
        count, _, place, _, _, done = carried
        return reduce(b, going(count, place, done), range(x.ndim), "or")

    def step(carried: list[Value]) -> list[Value]:
        count, exponent, place, total, term, done = carried
        active = going(count, place, done)
        next_place = b.add(place, b.like(place, 1))
        next_term = b.binary("power", next_place, exponent)
        next_total = b.add(total, next_term)
        ended = b.binary("or", done, b.binary("and", active, tiny(next_term, next_total)))
        return [
            b.add(count, b.like(count, 1)),
            exponent,
            b.select(active, next_place, place),
            b.select(active, next_total, total),
            b.select(active, next_term, term),
            ended,
        ]

    start = [b.scalar(0, torch.int32), exponent, q, b.binary("power", q, exponent), zero, started]
    _, _, place, total, term, done = while_loop(b, start, more, step)

    tail = b.add(total, b.div(b.mul(term, place), b.sub(x, one)))
    tail = b.sub(tail, b.mul(term, b.like(x, 0.5)))
    product = term
    for i, number in enumerate(_BERNOULLI):
        for k in (2 * i - 1, 2 * i):
            if k >= 0:
                product = b.mul(product, b.div(b.add(x, b.like(x, k)) if k else x, place))
        correction = b.mul(product, b.like(x, number / math.factorial(2 * i + 2)))
        tail = b.add(tail, correction)
    result = b.select(done, total, tail)
    result = b.select(undefined, b.like(x, math.nan), result)
    result = b.select(b.binary("and", pole, b.logical_not(b.compare("LT", x, one))), b.like(x, math.inf), result)
    return b.select(b.compare("EQ", x, one), b.like(x, math.inf), result)


def _many_terms(n: int, x: Any, *, target: Target) -> str | None:
    return None if n < 2 else needs_while(target=target)


@lowering(aten.polygamma.default, guard=_many_terms)
def polygamma(b: Builder, n: int, x: Value) -> Value:
    """Derivative n of digamma: (-1)^(n + 1) n! zeta(n + 1, x) from the second on."""
    if n == 0:
        return digamma(b, x)
    if n == 1:
        return widened(b, x, lambda wide: _trigamma(b, wide))
    dtype = compute_dtype(b.out.dtype)
    argument = b.convert(b.convert(x, dtype), _inner_dtype(b, dtype))
    value = b.convert(_zeta(b, b.like(argument, n + 1), argument), dtype)
    # The factorial as ATen rounds it.
    factor = math.copysign(torch.exp(torch.lgamma(torch.tensor(n + 1, dtype=dtype))).item(), 1 if n % 2 else -1)
    return b.convert(b.mul(value, b.like(value, factor)), b.out.dtype)


def _trigamma(b: Builder, x: Value) -> Value:
    """Reflection below 1/2, six steps of the recurrence, then the asymptotic series, as ATen has it."""
    half, one = b.like(x, 0.5), b.like(x, 1)
    reflect = b.compare("LT", x, half)
    pole = b.div(b.like(x, math.pi), b.unary("sine", b.mul(x, b.like(x, math.pi))))
    reflected = b.mul(pole, pole)
    x = b.select(reflect, b.sub(one, x), x)
    total = b.like(x, 0)
    for _ in range(6):
        total = b.add(total, b.div(one, b.mul(x, x)))
        x = b.add(x, one)
    square = b.div(one, b.mul(x, x))
    series = b.sub(b.like(x, 1 / 30), b.mul(square, b.like(x, 1 / 42)))
    series = b.mul(square, b.sub(b.like(x, 1 / 6), b.mul(square, series)))
    series = b.add(b.add(one, b.div(half, x)), series)
    total = b.add(total, b.div(series, x))
    return b.select(reflect, b.sub(reflected, total), total)
