"""Ops on the binary digits and the decimal digits of floating-point numbers: frexp, round to decimals; and logit, which rounds as
often as eager does."""

from __future__ import annotations

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.ops.elementwise import widened
from neuron_dynamo.lowering.registry import lowering

aten = torch.ops.aten

_LAYOUT = {
    torch.float16: (torch.int16, 10, 5),
    torch.bfloat16: (torch.int16, 7, 8),
    torch.float32: (torch.int32, 23, 8),
    torch.float64: (torch.int64, 52, 11),
}
"""Integer dtype of the same width, digits of the fraction, digits of the exponent."""


@lowering(aten.frexp.Tensor)
def frexp(b: Builder, x: Value) -> tuple[Value, Value]:
    """(mantissa, int32 exponent) with x = mantissa 2^exponent and 1/2 <= |mantissa| < 1; zeros, infinities and NaN keep exponent 0.

    In integers throughout: arithmetic on subnormal numbers may flush them to zero.
    """
    word, digits, width = _LAYOUT[x.dtype]
    bias = 2 ** (width - 1) - 1
    bits = b.emit("bitcast_convert", [x], x.shape, word)

    def constant(value: int) -> Value:
        return b.full(x.shape, value, word)

    fraction = b.binary("and", bits, constant(2**digits - 1))
    biased = b.binary("and", b.binary("shift_right_logical", bits, constant(digits)), constant(2**width - 1))
    subnormal = b.compare("EQ", biased, constant(0))
    # How far a subnormal's leading digit is from where a normal number's implicit one stands.
    shift = b.sub(b.unary("count_leading_zeros", fraction), constant(8 * x.dtype.itemsize - 1 - digits))
    shift = b.select(subnormal, shift, constant(0))
    normal = b.binary("and", b.binary("shift_left", fraction, shift), constant(2**digits - 1))
    sign = b.binary("and", bits, constant(-(2 ** (8 * x.dtype.itemsize - 1))))
    half = b.binary("or", b.binary("or", sign, normal), constant((bias - 1) << digits))
    exponent = b.sub(b.select(subnormal, b.sub(constant(1), shift), biased), constant(bias - 1))
    zero = b.binary("and", subnormal, b.compare("EQ", fraction, constant(0)))
    special = b.binary("or", zero, b.compare("EQ", biased, constant(2**width - 1)))
    mantissa = b.emit("bitcast_convert", [b.select(special, bits, half)], x.shape, x.dtype)
    return mantissa, b.convert(b.select(special, constant(0), exponent), torch.int32)


@lowering(aten.round.decimals)
def round_decimals(b: Builder, x: Value, *, decimals: int = 0) -> Value:
    """Scaled by a power of ten, rounded half to even, and scaled back."""
    if not x.dtype.is_floating_point:
        return x
    if decimals == 0:
        return b.unary("round_nearest_even", x)

    def body(wide: Value) -> Value:
        factor = b.like(wide, 10.0 ** abs(decimals))
        if decimals > 0:
            return b.div(b.unary("round_nearest_even", b.mul(wide, factor)), factor)
        return b.mul(b.unary("round_nearest_even", b.div(wide, factor)), factor)

    return widened(b, x, body)


@lowering(aten.logit.default)
def logit(b: Builder, x: Value, eps: float | None = None) -> Value:
    """log(x / (1 - x)) with x clamped to [eps, 1 - eps]; in a narrow dtype each operation rounds."""
    x = b.convert(x, b.out.dtype)
    if eps is not None:
        low, high = b.like(x, eps), b.like(x, 1 - eps)
        x = b.select(b.compare("LT", x, low), low, b.select(b.compare("GT", x, high), high, x))
    return b.unary("log", b.div(x, b.sub(b.like(x, 1), x)))
