"""Special functions. Definitions: PyTorch's documentation of each op; long expansions are CHLO's.

Float16 and bfloat16 are computed in float32 and rounded once; integers promote to the default float dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.ops.elementwise import widened
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import custom_call

aten = torch.ops.aten
Operand = Value | Scalar


def erf_of(b: Builder, x: Value) -> Value:
    """The error function of a float32 or float64 tensor: one op where the target has it, else an expansion."""
    if "mhlo.erf" in b.target.custom_calls:
        return custom_call(b, "mhlo.erf", [x], x.shape, x.dtype, "mhlo.attributes = {}, mhlo.version = 1 : i64")
    return b.chlo("erf", [x], x.shape, x.dtype)


def _unary(body: Callable[[Builder, Value], Value]) -> Callable[[Builder, Value], Value]:
    def rule(b: Builder, x: Value) -> Value:
        return widened(b, x, lambda wide: body(b, wide))

    return rule


def _chlo(name: str) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.chlo(name, [x], x.shape, x.dtype)


def _log_to_base(base: float) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.div(b.unary("log", x), b.like(x, math.log(base)))


def _lgamma(b: Builder, x: Value) -> Value:
    return b.chlo("lgamma", [x], x.shape, x.dtype)


def _i1(b: Builder, x: Value) -> Value:
    return b.mul(b.chlo("bessel_i1e", [x], x.shape, x.dtype), b.unary("exponential", b.unary("abs", x)))


for _op, _body in {
    aten.erf: erf_of,
    aten.erfc: _chlo("erfc"),
    aten.erfinv: _chlo("erf_inv"),
    aten.lgamma: _lgamma,
    aten.digamma: _chlo("digamma"),
    aten.special_i1e: _chlo("bessel_i1e"),
    aten.special_i1: _i1,
    aten.log2: _log_to_base(2),
    aten.log10: _log_to_base(10),
    aten.exp2: lambda b, x: b.binary("power", b.like(x, 2), x),
    aten.sinh: _chlo("sinh"),
    aten.cosh: _chlo("cosh"),
    aten.asin: _chlo("asin"),
    aten.acos: _chlo("acos"),
    aten.atan: _chlo("atan"),
    aten.asinh: _chlo("asinh"),
    aten.acosh: _chlo("acosh"),
    aten.atanh: _chlo("atanh"),
}.items():
    lowering(_op.default)(_unary(_body))


def _binary(body: Callable[[Builder, Value, Value], Value]) -> Callable[[Builder, Operand, Operand], Value]:
    def rule(b: Builder, x: Operand, y: Operand) -> Value:
        left, right = together(b, [x, y], compute_dtype(b.out.dtype))
        return b.convert(body(b, left, right), b.out.dtype)

    return rule


def _hypot(b: Builder, x: Value, y: Value) -> Value:
    """larger * sqrt(1 + (smaller / larger)^2): no overflow; infinity wins over NaN."""
    x, y = b.unary("abs", x), b.unary("abs", y)
    larger, smaller = b.max(x, y), b.min(x, y)
    ratio = b.div(smaller, larger)
    size = b.mul(larger, b.unary("sqrt", b.add(b.mul(ratio, ratio), b.like(x, 1))))
    size = b.select(b.compare("EQ", larger, b.like(x, 0)), larger, size)
    infinity = b.like(x, math.inf)
    return b.select(b.binary("or", b.compare("EQ", x, infinity), b.compare("EQ", y, infinity)), infinity, size)


def sign_bit(b: Builder, x: Value) -> Value:
    """Whether the sign bit is set: also of -0 and NaN."""
    if not x.dtype.is_floating_point:
        return b.compare("LT", x, b.like(x, 0)) if x.dtype.is_signed else b.full(x.shape, False, torch.bool)
    bits = b.emit("bitcast_convert", [x], x.shape, {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize])
    return b.compare("LT", bits, b.like(bits, 0))


def _copysign(b: Builder, x: Value, y: Value) -> Value:
    size = b.unary("abs", x)
    return b.select(sign_bit(b, y), b.neg(size), size)


def _choose(kind: str) -> Callable[[Builder, Value, Value], Value]:
    """max or min where NaN loses to a number."""

    def body(b: Builder, x: Value, y: Value) -> Value:
        chosen = b.max(x, y) if kind == "max" else b.min(x, y)
        return chosen if not x.dtype.is_floating_point else b.select(b.is_nan(x), y, b.select(b.is_nan(y), x, chosen))

    return body


lowering(aten.atan2.default)(_binary(lambda b, x, y: b.binary("atan2", x, y)))
lowering(aten.hypot.default)(_binary(_hypot))
lowering(aten.copysign.Tensor, aten.copysign.Scalar)(_binary(_copysign))
lowering(aten.fmax.default)(_binary(_choose("max")))
lowering(aten.fmin.default)(_binary(_choose("min")))
lowering(aten.special_zeta.default, aten.special_zeta.other_scalar, aten.special_zeta.self_scalar)(
    _binary(lambda b, x, y: b.chlo("zeta", [x, y], x.shape, x.dtype))
)


def _trigamma(b: Builder, x: Value) -> Value:
    """Reflection below 1/2, six steps of the recurrence, then the asymptotic series, as ATen has it."""
    half, one = b.like(x, 0.5), b.like(x, 1)
    reflect = b.compare("LT", x, half)
    pole = b.div(b.like(x, math.pi), b.unary("sine", b.mul(x, b.like(x, math.pi))))
    start = b.select(reflect, b.neg(b.mul(pole, pole)), b.like(x, 0))
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
    return b.add(start, b.select(reflect, b.neg(total), total))


@lowering(aten.polygamma.default)
def polygamma(b: Builder, n: int, x: Value) -> Value:
    """Derivative n of digamma; from n = 2 on (-1)^(n+1) n! zeta(n + 1, x)."""

    def body(wide: Value) -> Value:
        if n == 0:
            return b.chlo("digamma", [wide], wide.shape, wide.dtype)
        if n == 1:
            return _trigamma(b, wide)
        zeta = b.chlo("zeta", [b.like(wide, n + 1), wide], wide.shape, wide.dtype)
        return b.mul(zeta, b.like(wide, math.factorial(n) * (1 if n % 2 else -1)))

    return widened(b, x, body)


@lowering(aten.nextafter.default)
def nextafter(b: Builder, x: Value, y: Value) -> Value:
    left, right = together(b, [x, y], b.out.dtype)
    return b.chlo("next_after", [left, right], b.out.shape, b.out.dtype)


@lowering(aten.signbit.default)
def signbit(b: Builder, x: Value) -> Value:
    return sign_bit(b, x)
