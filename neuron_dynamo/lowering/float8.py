"""Conversion to the eight-bit floating-point types, with PyTorch's rounding and overflow (c10/util/Float8_*.h).

Everything goes through float32, as in PyTorch. StableHLO's own `convert` rounds to nearest even as PyTorch does, but it leaves open
what happens beyond the range; what must differ from XLA there is done around it. A NaN stays a NaN; its payload may be another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from neuron_dynamo.lowering.builder import Builder, Value

FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu})
_VANISHING = {torch.float8_e4m3fnuz: 2.0**-11, torch.float8_e5m2fnuz: 2.0**-18}
"""Half of the least number: what is no larger rounds to zero."""


def to_float8(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    """x (any real dtype) as `dtype`, one of FLOAT8. e4m3fn saturates, the others overflow to infinity or NaN."""
    x = b.convert(x, torch.float32)
    if dtype == torch.float8_e8m0fnu:
        return _exponent(b, x)
    if dtype == torch.float8_e4m3fn:
        limit = torch.finfo(dtype).max
        x = b.max(b.min(x, b.like(x, limit)), b.like(x, -limit))
    elif dtype in _VANISHING:  # no negative zero: its pattern is NaN, which XLA would make of a negative number that rounds to zero
        x = b.select(b.compare("LE", b.unary("abs", x), b.like(x, _VANISHING[dtype])), b.like(x, 0), x)
    return b.emit("convert", [x], x.shape, dtype)


def _exponent(b: Builder, x: Value) -> Value:
    """The exponent of |x|, rounded to the nearer power of two and halfway up; NaN and infinity become 255, which is NaN."""
    bits = b.emit("bitcast_convert", [x], x.shape, torch.int32)
    field = b.binary("and", b.binary("shift_right_logical", bits, b.like(bits, 23)), b.like(bits, 0xFF))
    fraction = b.binary("and", bits, b.like(bits, 0x7FFFFF))
    half = b.like(bits, 0x400000)
    # Below the smallest normal float32 the lowest bit of the result is 0, and a tie goes to even.
    tie = b.binary("and", b.compare("EQ", fraction, half), b.compare("NE", field, b.like(bits, 0)))
    up = b.binary("or", b.compare("GT", fraction, half), tie)
    finite = b.compare("NE", field, b.like(bits, 0xFF))
    rounded = b.add(field, b.convert(b.binary("and", up, finite), torch.int32))
    return b.emit("bitcast_convert", [b.convert(rounded, torch.uint8)], x.shape, torch.float8_e8m0fnu)
