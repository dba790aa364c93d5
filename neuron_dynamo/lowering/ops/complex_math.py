"""Functions of complex numbers, where StableHLO's op on complex tensors is absent, inexact or wrong at a branch cut or a non-finite value.

Special values are those of C99's Annex G, which the standard C++ functions that eager PyTorch calls follow. XLA's own complex
exponential, log, log_plus_one, tan, tanh, rsqrt and CHLO's inverse functions are exact to a few units in the last place;
its sine and cosine cancel near the axes, its sqrt forgets the sign of a zero imaginary part, and its divide knows more infinities than
ATen's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import complex_lowering
from neuron_dynamo.lowering.structured import normalise_dims, reduce, spread

aten = torch.ops.aten
Operand = Value | Scalar


def parts(b: Builder, x: Value) -> tuple[Value, Value]:
    """(real, imaginary) parts of a complex tensor."""
    dtype = x.dtype.to_real()
    return b.emit("real", [x], x.shape, dtype), b.emit("imag", [x], x.shape, dtype)


def join(b: Builder, real: Value, imag: Value) -> Value:
    """The complex tensor of two real ones of equal shape and dtype."""
    return b.emit("complex", [real, imag], real.shape, real.dtype.to_complex())


def conjugate(b: Builder, x: Value) -> Value:
    """The conjugate; a real tensor itself."""
    if not x.dtype.is_complex:
        return x
    real, imag = parts(b, x)
    return join(b, real, b.neg(imag))


def divided_by_real(b: Builder, x: Value, divisor: Value) -> Value:
    """Complex x over a real divisor of its shape, part by part."""
    real, imag = parts(b, x)
    return join(b, b.div(real, divisor), b.div(imag, divisor))


def divide(b: Builder, x: Value, y: Value) -> Value:
    """x / y by Smith's method, as ATen has it: the divisor's smaller part over its larger one first, so that nothing overflows."""
    (real, imag), (c, d) = parts(b, x), parts(b, y)
    c_size, d_size = b.unary("abs", c), b.unary("abs", d)
    wide = b.compare("GE", c_size, d_size)
    larger, smaller = b.select(wide, c, d), b.select(wide, d, c)
    ratio = b.div(smaller, larger)
    under = b.add(larger, b.mul(smaller, ratio))
    minus = b.neg(real)
    top = b.div(b.add(b.select(wide, real, imag), b.mul(b.select(wide, imag, real), ratio)), under)
    side = b.div(b.add(b.select(wide, imag, minus), b.mul(b.select(wide, minus, imag), ratio)), under)
    zero = b.binary("and", wide, b.compare("EQ", c_size, b.like(c, 0)))
    return join(b, b.select(zero, b.div(real, c_size), top), b.select(zero, b.div(imag, c_size), side))


def _is_inf(b: Builder, x: Value) -> Value:
    return b.compare("EQ", b.unary("abs", x), b.like(x, math.inf))


def is_infinite(b: Builder, x: Value) -> Value:
    """Whether either part is infinite."""
    real, imag = parts(b, x)
    return b.binary("or", _is_inf(b, real), _is_inf(b, imag))


def absolute(b: Builder, x: Value) -> Value:
    """|x| without overflow on the way; an infinite part wins over NaN in the other."""
    size = b.emit("abs", [x], x.shape, x.dtype.to_real())
    return b.select(is_infinite(b, x), b.like(size, math.inf), size)


def _with_sign(b: Builder, size: Value, like: Value) -> Value:
    """Non-negative `size` with the sign bit of `like`."""
    from neuron_dynamo.lowering.ops.special import sign_bit

    return b.select(sign_bit(b, like), b.neg(size), size)


def _size_decides(b: Builder, x: Value, result: Value) -> Value:
    """An exponential of x: where its real part is infinite, that decides the size whatever the angle, even NaN."""
    real, imag = parts(b, x)
    got_real, got_imag = parts(b, result)
    lost = b.logical_not(b.emit("is_finite", [imag], imag.shape, torch.bool))
    gone = b.binary("and", b.compare("EQ", real, b.like(real, -math.inf)), lost)
    vast = b.binary("and", b.compare("EQ", real, b.like(real, math.inf)), lost)
    zero = b.like(real, 0)
    return join(b, b.select(gone, zero, b.select(vast, real, got_real)), b.select(gone, zero, got_imag))


def exp(b: Builder, x: Value) -> Value:
    return _size_decides(b, x, b.unary("exponential", x))


def log(b: Builder, x: Value) -> Value:
    real, imag = parts(b, b.unary("log", x))
    return join(b, b.select(is_infinite(b, x), b.like(real, math.inf), real), imag)


def sqrt(b: Builder, x: Value) -> Value:
    """The root in the right half-plane; on the branch cut the sign of the zero decides."""
    real, imag = parts(b, x)
    got_real, got_imag = parts(b, b.unary("sqrt", x))
    infinity = b.like(real, math.inf)
    sideways = _is_inf(b, imag)
    got_real = b.select(b.binary("or", sideways, b.compare("EQ", real, infinity)), infinity, got_real)
    backwards = b.compare("EQ", real, b.like(real, -math.inf))
    size = b.select(b.binary("or", sideways, backwards), infinity, b.unary("abs", got_imag))
    return join(b, got_real, _with_sign(b, size, imag))


def _sinh_cosh(b: Builder, x: Value) -> tuple[Value, Value]:
    """(sinh, cosh) of a real tensor."""
    from neuron_dynamo.lowering.ops import special

    return special.sinh_of(b, x), special.cosh_of(b, x)


def _times_zero_wins(b: Builder, x: Value, y: Value, zero: Value) -> Value:
    """x * y, and `zero` itself where it is a zero, though the other factor be infinite or NaN."""
    return b.select(b.compare("EQ", zero, b.like(zero, 0)), zero, b.mul(x, y))


def _vast_off_finite(b: Builder, real: Value, imag: Value, part: Value) -> Value:
    """`part`, and infinity where the real argument is infinite while the angle is not finite."""
    lost = b.logical_not(b.emit("is_finite", [imag], imag.shape, torch.bool))
    return b.select(b.binary("and", _is_inf(b, real), lost), b.like(part, math.inf), part)


def sinh(b: Builder, x: Value) -> Value:
    """sinh(r) cos(i) + i cosh(r) sin(i)."""
    real, imag = parts(b, x)
    grow, level = _sinh_cosh(b, real)
    left = _times_zero_wins(b, grow, b.unary("cosine", imag), real)
    left = _vast_off_finite(b, real, imag, left)
    return join(b, left, _times_zero_wins(b, level, b.unary("sine", imag), imag))


def cosh(b: Builder, x: Value) -> Value:
    """cosh(r) cos(i) + i sinh(r) sin(i)."""
    real, imag = parts(b, x)
    grow, level = _sinh_cosh(b, real)
    sine = b.unary("sine", imag)
    zero = b.like(real, 0)
    axis = b.binary("or", b.compare("EQ", real, zero), b.compare("EQ", imag, zero))
    # On either axis the imaginary part is a zero with the sign of the product of the parts.
    signed = b.mul(_with_sign(b, b.like(real, 1), real), _with_sign(b, zero, imag))
    left = _vast_off_finite(b, real, imag, b.mul(level, b.unary("cosine", imag)))
    return join(b, left, b.select(axis, signed, b.mul(grow, sine)))


def times_i(b: Builder, x: Value, negative: bool = False) -> Value:
    """i * x, or -i * x."""
    real, imag = parts(b, x)
    return join(b, imag, b.neg(real)) if negative else join(b, b.neg(imag), real)


def sin(b: Builder, x: Value) -> Value:
    """-i sinh(i x)."""
    return times_i(b, sinh(b, times_i(b, x)), negative=True)


def cos(b: Builder, x: Value) -> Value:
    """cosh(i x)."""
    return cosh(b, times_i(b, x))


def tanh(b: Builder, x: Value) -> Value:
    real, _ = parts(b, x)
    got_real, got_imag = parts(b, b.unary("tanh", x))
    return join(b, b.select(b.compare("EQ", real, b.like(real, 0)), real, got_real), got_imag)


def tan(b: Builder, x: Value) -> Value:
    _, imag = parts(b, x)
    got_real, got_imag = parts(b, b.unary("tan", x))
    return join(b, got_real, b.select(b.compare("EQ", imag, b.like(imag, 0)), imag, got_imag))


def _log_by(base: float) -> Callable[[Builder, Value], Value]:
    def rule(b: Builder, x: Value) -> Value:
        real, imag = parts(b, log(b, x))
        factor = b.like(real, 1 / math.log(base))
        return join(b, b.mul(real, factor), b.mul(imag, factor))

    return rule


def exp2(b: Builder, x: Value) -> Value:
    """exp(x log 2), with an exact power of two for the size."""
    real, imag = parts(b, x)
    size = b.binary("power", b.like(real, 2), real)
    angle = b.mul(imag, b.like(imag, math.log(2)))
    sine = b.select(b.compare("EQ", imag, b.like(imag, 0)), imag, b.mul(size, b.unary("sine", angle)))
    return _size_decides(b, x, join(b, b.mul(size, b.unary("cosine", angle)), sine))


def power(b: Builder, x: Value, y: Value) -> Value:
    """exp(y log x), by the same steps as C's cpow. A zero base gives 0 for an exponent with a positive real part.

    The rounding of y log x is the error of the result, so single precision is computed in double where the target has it.
    """
    if x.dtype == torch.complex64 and torch.complex128 in b.target.dtypes:
        return b.convert(power(b, b.convert(x, torch.complex128), b.convert(y, torch.complex128)), x.dtype)
    logarithm = log(b, x)
    result = exp(b, b.mul(y, logarithm))
    real, _ = parts(b, y)
    zero = b.compare("EQ", x, b.like(x, 0))
    vanishes = b.binary("and", zero, b.compare("GT", real, b.like(real, 0)))
    return b.select(vanishes, b.like(x, 0), result)


def _inverse(name: str, real_sign: str = "", imag_sign: str = "") -> Callable[[Builder, Value], Value]:
    """CHLO's function, each part with the sign ("+" or "-") of the part of x that decides it: at a branch cut that of a zero."""

    def rule(b: Builder, x: Value) -> Value:
        found = []
        for sign, got, given in zip((real_sign, imag_sign), parts(b, b.chlo(name, [x], x.shape, x.dtype)), parts(b, x), strict=True):
            like = b.neg(given) if sign == "-" else given
            found.append(_with_sign(b, b.unary("abs", got), like) if sign else got)
        return join(b, found[0], found[1])

    return rule


for _op, _body in {
    aten.exp: exp,
    aten.log: log,
    aten.sqrt: sqrt,
    aten.sin: sin,
    aten.cos: cos,
    aten.tan: tan,
    aten.sinh: sinh,
    aten.cosh: cosh,
    aten.tanh: tanh,
    aten.asin: _inverse("asin", "+", "+"),
    aten.acos: _inverse("acos", "", "-"),
    aten.atan: _inverse("atan", "+", "+"),
    aten.asinh: _inverse("asinh", "+", "+"),
    aten.acosh: _inverse("acosh", "", "+"),
    aten.atanh: _inverse("atanh", "+", "+"),
    aten.exp2: exp2,
    aten.log2: _log_by(2),
    aten.log10: _log_by(10),
}.items():
    complex_lowering(_op.default)(_body)


@complex_lowering(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def pow_(b: Builder, x: Operand, y: Operand) -> Value:
    """ATen's kernel has its own way for the exponents that its list names."""
    left, right = together(b, [x, y], b.out.dtype)
    if isinstance(y, (bool, int, float, complex)):
        if y == 0:
            return b.like(left, 1)
        if y == 1:
            return left
        if y == 2:
            return b.mul(left, left)
        if y == 3:
            return b.mul(b.mul(left, left), left)
        if y == 0.5:
            return sqrt(b, left)
        if y == -0.5:
            return b.unary("rsqrt", left)
        if y == -1:
            return divide(b, b.like(left, 1), left)
        if y == -2:
            return divide(b, b.like(left, 1), b.mul(left, left))
    return power(b, left, right)


@complex_lowering(aten.logsumexp.default)
def logsumexp(b: Builder, x: Value, dim: Sequence[int] | int, keepdim: bool = False) -> Value:
    """log(sum(exp(x - m))) + m with m the largest real part, or 0 where that is infinite."""
    dims = normalise_dims(dim, x.ndim)
    largest = reduce(b, parts(b, x)[0], dims, "max")
    shift = b.select(_is_inf(b, largest), b.like(largest, 0), largest)
    shift = join(b, shift, b.like(shift, 0))
    total = reduce(b, exp(b, b.sub(x, spread(b, shift, x.shape, dims))), dims, "add")
    return b.reshape(b.add(log(b, total), shift), b.out.shape)


def _divide(b: Builder, x: Operand, y: Operand) -> Value:
    dtype = b.out.dtype
    left = b.value(x, dtype, b.out.shape)
    plain = not y.dtype.is_complex if isinstance(y, Value) else not isinstance(y, complex)
    if plain:
        return divided_by_real(b, left, b.value(y, dtype.to_real(), b.out.shape))
    return divide(b, left, b.value(y, dtype, b.out.shape))


@complex_lowering(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(b: Builder, x: Operand, y: Operand) -> Value:
    return _divide(b, x, y)


@complex_lowering(aten.reciprocal.default)
def reciprocal(b: Builder, x: Value) -> Value:
    return divide(b, b.like(x, 1), x)


@complex_lowering(aten.addcdiv.default)
def addcdiv(b: Builder, x: Value, left: Value, right: Value, value: Scalar = 1) -> Value:
    """x + value * left / right."""
    left = b.value(left, b.out.dtype, b.out.shape)
    left = left if value == 1 else b.mul(left, b.like(left, value))
    return b.add(b.value(x, b.out.dtype, b.out.shape), _divide(b, left, right))
