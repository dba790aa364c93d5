"""Chebyshev, shifted Chebyshev, Hermite, Laguerre and Legendre polynomials with the degree a tensor.

Three-term recurrences (DLMF 18.9) as one loop up to the largest degree; Chebyshev polynomials of higher degree inside (-1, 1) by their
trigonometric forms (DLMF 18.5). Degrees are cut to integers, a negative one gives 0: as ATen's kernels have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.loops import needs_while
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce, while_loop

aten = torch.ops.aten
Operand = Value | Scalar
Step = Callable[[Builder, Value, Value, Value, Value], Value]
"""(builder, x, degree k, polynomial of degree k - 1, of degree k) -> of degree k + 1; k is in x's dtype."""


def _recurrence(b: Builder, x: Value, n: Value, first: Value, step: Step, active: Value | None = None) -> Value:
    """The polynomial of degree n, from 1 and `first`; elements that are not `active` are not computed."""
    one = b.like(x, 1)
    degree = b.convert(n, torch.int64)
    if active is not None:
        degree = b.select(active, degree, b.like(degree, 0))

    def unfinished(k: Value, degree: Value, current: Value) -> Value:
        later = b.compare("LT", b.broadcast(k, degree.shape, ()), degree)
        return b.binary("and", later, b.logical_not(b.is_nan(current)))

    def more(carried: list[Value]) -> Value:
        k, degree, _, _, current = carried
        return reduce(b, unfinished(k, degree, current), range(x.ndim), "or")

    def body(carried: list[Value]) -> list[Value]:
        k, degree, x, before, current = carried
        going = unfinished(k, degree, current)
        order = b.broadcast(b.convert(k, x.dtype), x.shape, ())
        after = step(b, x, order, before, current)
        return [b.add(k, b.like(k, 1)), degree, x, b.select(going, current, before), b.select(going, after, current)]

    start = b.scalar(1, torch.int64)
    result = while_loop(b, [start, degree, x, one, first], more, body)[4]
    return b.select(b.compare("EQ", degree, b.like(degree, 0)), one, result)


def _doubled(b: Builder, x: Value) -> Value:
    return b.add(x, x)


def _chebyshev_step(b: Builder, x: Value, k: Value, before: Value, current: Value) -> Value:
    return b.sub(b.mul(_doubled(b, x), current), before)


def _hermite_step(b: Builder, x: Value, k: Value, before: Value, current: Value) -> Value:
    return b.sub(b.mul(_doubled(b, x), current), b.mul(_doubled(b, k), before))


def _hermite_e_step(b: Builder, x: Value, k: Value, before: Value, current: Value) -> Value:
    return b.sub(b.mul(x, current), b.mul(k, before))


def _laguerre_step(b: Builder, x: Value, k: Value, before: Value, current: Value) -> Value:
    one = b.like(x, 1)
    grown = b.mul(b.add(_doubled(b, k), b.sub(one, x)), current)
    return b.div(b.sub(grown, b.mul(k, before)), b.add(k, one))


def _legendre_step(b: Builder, x: Value, k: Value, before: Value, current: Value) -> Value:
    one = b.like(x, 1)
    grown = b.mul(b.mul(b.add(_doubled(b, k), one), x), current)
    return b.div(b.sub(grown, b.mul(k, before)), b.add(k, one))


def _minus_one_to(b: Builder, n: Value, size: Value) -> Value:
    """size where n is even, -size where it is odd."""
    odd = b.compare("NE", b.binary("remainder", n, b.like(n, 2)), b.like(n, 0))
    return b.select(odd, b.neg(size), size)


@dataclass(frozen=True)
class _Chebyshev:
    """`linear` is the polynomial of degree 1, `wave` the trigonometric form used above degree `beyond` inside (-1, 1), `ends` the sizes at
    1 and -1, all as functions of the argument in [-1, 1] and the degree."""

    linear: Callable[[Builder, Value], Value]
    wave: Callable[[Builder, Value, Value, Value], Value]
    ends: Callable[[Builder, Value], tuple[Value, Value]]
    beyond: int
    shifted_beyond: int


def _one(b: Builder, n: Value) -> Value:
    return b.like(n, 1)


def _plus(b: Builder, n: Value, offset: float) -> Value:
    return b.add(n, b.like(n, offset))


def _half(b: Builder, x: Value) -> Value:
    return b.mul(x, b.like(x, 0.5))


def _wave_u(b: Builder, x: Value, n: Value, angle: Value) -> Value:
    count, sine = _plus(b, n, 1), b.unary("sine", angle)
    turned = b.mul(count, angle)
    flat = b.div(b.mul(count, b.unary("cosine", turned)), x)
    return b.select(b.compare("NE", sine, b.like(x, 0)), b.div(b.unary("sine", turned), sine), flat)


def _wave_v(b: Builder, x: Value, n: Value, angle: Value) -> Value:
    half = _half(b, angle)
    end = _minus_one_to(b, n, _plus(b, _doubled(b, n), 1))
    value = b.div(b.unary("cosine", b.mul(_plus(b, n, 0.5), angle)), b.unary("cosine", half))
    return b.select(b.compare("NE", b.unary("sine", half), b.like(x, 1)), value, end)


def _wave_w(b: Builder, x: Value, n: Value, angle: Value) -> Value:
    half = _half(b, angle)
    value = b.div(b.unary("sine", b.mul(_plus(b, n, 0.5), angle)), b.unary("sine", half))
    end = b.select(b.compare("GT", x, b.like(x, 0)), _plus(b, _doubled(b, n), 1), _minus_one_to(b, n, b.like(n, 1)))
    return b.select(b.compare("NE", b.unary("cosine", half), b.like(x, 1)), value, end)


_T = _Chebyshev(
    linear=lambda b, x: x,
    wave=lambda b, x, n, angle: b.unary("cosine", b.mul(n, angle)),
    ends=lambda b, n: (_one(b, n), _one(b, n)),
    beyond=6,
    shifted_beyond=6,
)
_U = _Chebyshev(
    linear=_doubled,
    wave=_wave_u,
    ends=lambda b, n: (_plus(b, n, 1), _plus(b, n, 1)),
    beyond=8,
    shifted_beyond=6,
)
_V = _Chebyshev(
    linear=lambda b, x: _plus(b, _doubled(b, x), -1),
    wave=_wave_v,
    ends=lambda b, n: (_one(b, n), _plus(b, _doubled(b, n), 1)),
    beyond=8,
    shifted_beyond=6,
)
_W = _Chebyshev(
    linear=lambda b, x: _plus(b, _doubled(b, x), 1),
    wave=_wave_w,
    ends=lambda b, n: (_plus(b, _doubled(b, n), 1), _one(b, n)),
    beyond=8,
    shifted_beyond=4,
)


def _chebyshev(family: _Chebyshev, shifted: bool) -> Callable[[Builder, Value, Value], Value]:
    def body(b: Builder, x: Value, n: Value) -> Value:
        if shifted:
            x = _plus(b, _doubled(b, x), -1)
        one = b.like(x, 1)
        high = b.compare("GT", n, b.like(n, family.shifted_beyond if shifted else family.beyond))
        waves = b.binary("and", high, b.compare("LT", b.unary("abs", x), one))
        upper, lower = family.ends(b, n)
        at_upper, at_lower = b.compare("EQ", x, one), b.compare("EQ", x, b.like(x, -1))
        recurs = b.logical_not(b.binary("or", waves, b.binary("or", at_upper, at_lower)))
        result = _recurrence(b, x, n, family.linear(b, x), _chebyshev_step, recurs)
        inside = b.select(waves, x, b.like(x, 0))
        result = b.select(waves, family.wave(b, inside, n, b.chlo("acos", [inside], x.shape, x.dtype)), result)
        return b.select(at_upper, upper, b.select(at_lower, _minus_one_to(b, n, lower), result))

    return body


def _limited(b: Builder, x: Value, n: Value, first: Value, step: Step) -> Value:
    """NaN above the degree at which ATen's Hermite polynomials give up."""
    high = b.compare("GT", n, b.like(n, 512 if x.dtype == torch.float64 else 128))
    return b.select(high, b.like(x, math.nan), _recurrence(b, x, n, first, step, b.logical_not(high)))


def _hermite(b: Builder, x: Value, n: Value) -> Value:
    return _limited(b, x, n, _doubled(b, x), _hermite_step)


def _hermite_e(b: Builder, x: Value, n: Value) -> Value:
    return _limited(b, x, n, x, _hermite_e_step)


def _laguerre(b: Builder, x: Value, n: Value) -> Value:
    one, zero = b.like(x, 1), b.compare("EQ", x, b.like(x, 0))
    return b.select(zero, one, _recurrence(b, x, n, b.sub(one, x), _laguerre_step, b.logical_not(zero)))


def _legendre(b: Builder, x: Value, n: Value) -> Value:
    end = b.compare("EQ", b.unary("abs", x), b.like(x, 1))
    at_end = b.select(b.compare("GT", x, b.like(x, 0)), b.like(x, 1), _minus_one_to(b, n, b.like(x, 1)))
    return b.select(end, at_end, _recurrence(b, x, n, x, _legendre_step, b.logical_not(end)))


def _rule(body: Callable[[Builder, Value, Value], Value]) -> Callable[[Builder, Operand, Operand], Value]:
    def rule(b: Builder, x: Operand, n: Operand) -> Value:
        argument, degree = together(b, [x, n], compute_dtype(b.out.dtype))
        # To integers and back: StableHLO has no truncation, and 0.5 must be degree 0.
        whole = b.convert(b.convert(degree, torch.int64), degree.dtype)
        result = body(b, argument, whole)
        return b.convert(b.select(b.compare("LT", whole, b.like(whole, 0)), b.like(result, 0), result), b.out.dtype)

    return rule


for _name, _body in {
    "chebyshev_polynomial_t": _chebyshev(_T, False),
    "chebyshev_polynomial_u": _chebyshev(_U, False),
    "chebyshev_polynomial_v": _chebyshev(_V, False),
    "chebyshev_polynomial_w": _chebyshev(_W, False),
    "shifted_chebyshev_polynomial_t": _chebyshev(_T, True),
    "shifted_chebyshev_polynomial_u": _chebyshev(_U, True),
    "shifted_chebyshev_polynomial_v": _chebyshev(_V, True),
    "shifted_chebyshev_polynomial_w": _chebyshev(_W, True),
    "hermite_polynomial_h": _hermite,
    "hermite_polynomial_he": _hermite_e,
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
}.items():
    _packet = getattr(aten, f"special_{_name}")
    lowering(_packet.default, _packet.x_scalar, _packet.n_scalar, guard=needs_while)(_rule(_body))
