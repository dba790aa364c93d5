"""Special functions. Definitions: PyTorch's documentation of each op; long expansions are CHLO's.

Float16 and bfloat16 are computed in float32 and rounded once; integers promote to the default float dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, accurate_dtype, compute_dtype
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


def _log2(b: Builder, x: Value) -> Value:
    """log(x) / log(2), exact where x is a power of two: programs take its floor."""
    near = b.div(b.unary("log", x), b.like(x, math.log(2)))
    whole = b.unary("round_nearest_even", near)
    return b.select(b.compare("EQ", _exp2(b, whole), x), whole, near)


def _exp2(b: Builder, x: Value) -> Value:
    return b.binary("power", b.like(x, 2), x)


def _log10(b: Builder, x: Value) -> Value:
    return b.div(b.unary("log", x), b.like(x, math.log(10)))


def _hyperbolic(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(|x|, e^|x| / 2, e^-|x| / 2) without overflow before the result's."""
    size = b.unary("abs", x)
    root = b.unary("exponential", b.mul(size, b.like(x, 0.5)))
    growing = b.mul(b.mul(root, b.like(x, 0.5)), root)
    return size, growing, b.div(b.like(x, 0.25), growing)


def sinh_of(b: Builder, x: Value) -> Value:
    """(e^x - e^-x) / 2, or its Taylor series where that would cancel: exact where x^3 is lost, as gradients of differences need."""
    size, growing, fading = _hyperbolic(b, x)
    square = b.mul(x, x)
    last = 17 if x.dtype == torch.float64 else 11  # x^(last + 2) / (last + 2)! is lost up to 1
    series = b.like(x, 1 / math.factorial(last))
    for power in range(last - 2, 1, -2):
        series = b.add(b.mul(series, square), b.like(x, 1 / math.factorial(power)))
    near = b.add(x, b.mul(x, b.mul(square, series)))
    far = b.sub(growing, fading)
    far = b.select(sign_bit(b, x), b.neg(far), far)
    return b.select(b.compare("LT", size, b.like(x, 1)), near, far)


def cosh_of(b: Builder, x: Value) -> Value:
    _, growing, fading = _hyperbolic(b, x)
    return b.add(growing, fading)


def _digamma(b: Builder, x: Value) -> Value:
    """CHLO's, but for the pole at 0, where the sign of the zero decides."""
    pole = b.div(b.like(x, -1), x)
    return b.select(b.compare("EQ", x, b.like(x, 0)), pole, b.chlo("digamma", [x], x.shape, x.dtype))


for _op, _body in {
    aten.erf: erf_of,
    aten.log2: _log2,
    aten.log10: _log10,
    aten.exp2: _exp2,
    aten.sinh: sinh_of,
    aten.cosh: cosh_of,
    aten.asin: _chlo("asin"),
    aten.acos: _chlo("acos"),
    aten.atan: _chlo("atan"),
    aten.asinh: _chlo("asinh"),
    aten.acosh: _chlo("acosh"),
    aten.atanh: _chlo("atanh"),
}.items():
    lowering(_op.default)(_unary(_body))


def _accurate(body: Callable[[Builder, Value], Value]) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.convert(body(b, b.convert(x, accurate_dtype(b.out.dtype, b.target))), b.out.dtype)


# What float32 alone is not good enough for: the gradient of erfinv is the exponential of its square, erfc has that of -x^2 as a factor,
# lgamma and digamma are differences near their roots.
for _op, _body in {
    aten.erfinv: _chlo("erf_inv"),
    aten.erfc: _chlo("erfc"),
    aten.lgamma: _chlo("lgamma"),
}.items():
    lowering(_op.default)(_accurate(_body))
digamma = lowering(aten.digamma.default)(_accurate(_digamma))


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


@lowering(aten.nextafter.default)
def nextafter(b: Builder, x: Value, y: Value) -> Value:
    left, right = together(b, [x, y], b.out.dtype)
    return b.chlo("next_after", [left, right], b.out.shape, b.out.dtype)


@lowering(aten.signbit.default)
def signbit(b: Builder, x: Value) -> Value:
    return sign_bit(b, x)


@lowering(aten.angle.default)
def angle(b: Builder, x: Value) -> Value:
    """Of a real number: pi below 0, else 0; NaN stays."""
    if x.dtype.is_complex:
        real, imag = (b.emit(part, [x], x.shape, b.out.dtype) for part in ("real", "imag"))
        return b.binary("atan2", imag, real)

    def body(wide: Value) -> Value:
        zero = b.like(wide, 0)
        result = b.select(b.compare("LT", wide, zero), b.like(wide, math.pi), zero)
        return b.select(b.is_nan(wide), wide, result)

    return widened(b, x, body)
