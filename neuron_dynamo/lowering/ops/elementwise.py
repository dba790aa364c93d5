"""Elementwise arithmetic, comparison, selection and conversion. Definitions: the ATen schemas and PyTorch's documentation of each op.

Ops that PyTorch's CPU kernels compute in float32 for float16 and bfloat16 are computed so here too, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.loops import bounded_loop
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce

aten = torch.ops.aten
prims = torch.ops.prims
Operand = Value | Scalar


def widened(b: Builder, x: Value, body: Callable[[Value], Value]) -> Value:
    """Apply `body` to x converted to the result's compute dtype, and round the outcome to the result's dtype."""
    return b.convert(body(b.convert(x, compute_dtype(b.out.dtype))), b.out.dtype)


def _unary(name: str) -> Callable[[Builder, Value], Value]:
    def rule(b: Builder, x: Value) -> Value:
        return widened(b, x, lambda wide: b.unary(name, wide))

    return rule


# Float results; integer and bool inputs promote to the default float dtype.
for _op, _name in {
    aten.exp: "exponential",
    aten.expm1: "exponential_minus_one",
    aten.log: "log",
    aten.log1p: "log_plus_one",
    aten.sqrt: "sqrt",
    aten.rsqrt: "rsqrt",
    aten.sin: "sine",
    aten.cos: "cosine",
    aten.tan: "tan",
    aten.tanh: "tanh",
}.items():
    lowering(_op.default)(_unary(_name))


@lowering(aten.sigmoid.default)
def sigmoid(b: Builder, x: Value) -> Value:
    return widened(b, x, lambda wide: b.unary("logistic", wide))


@lowering(aten.reciprocal.default)
def reciprocal(b: Builder, x: Value) -> Value:
    return widened(b, x, lambda wide: b.div(b.like(wide, 1), wide))


@lowering(aten.neg.default)
def neg(b: Builder, x: Value) -> Value:
    return b.neg(x)


@lowering(aten.abs.default)
def absolute(b: Builder, x: Value) -> Value:
    if x.dtype.is_complex:
        return b.emit("abs", [x], x.shape, b.out.dtype)
    return x if not x.dtype.is_signed else b.unary("abs", x)


@lowering(aten.sign.default)
def sign(b: Builder, x: Value) -> Value:
    if x.dtype == torch.bool:
        return x
    if not x.dtype.is_signed:
        return b.convert(b.compare("NE", x, b.like(x, 0)), x.dtype)
    result = b.unary("sign", x)
    # torch gives 0 for NaN; StableHLO gives NaN.
    return b.select(b.is_nan(x), b.like(x, 0), result) if x.dtype.is_floating_point else result


def _rounding(name: str) -> Callable[..., Value]:
    def rule(b: Builder, x: Value) -> Value:
        return b.unary(name, x) if x.dtype.is_floating_point else x

    return rule


lowering(aten.floor.default)(_rounding("floor"))
lowering(aten.ceil.default)(_rounding("ceil"))
lowering(aten.round.default)(_rounding("round_nearest_even"))


@lowering(aten.trunc.default)
def trunc(b: Builder, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return x
    return b.select(b.compare("LT", x, b.like(x, 0)), b.unary("ceil", x), b.unary("floor", x))


@lowering(aten.isnan.default)
def isnan(b: Builder, x: Value) -> Value:
    return b.is_nan(x) if x.dtype.is_floating_point or x.dtype.is_complex else b.full(x.shape, False, torch.bool)


@lowering(aten.isinf.default)
def isinf(b: Builder, x: Value) -> Value:
    if not x.dtype.is_floating_point:
        return b.full(x.shape, False, torch.bool)
    return b.compare("EQ", b.unary("abs", x), b.like(x, math.inf))


@lowering(aten.relu.default)
def relu(b: Builder, x: Value) -> Value:
    return b.max(x, b.like(x, 0))


# Binary arithmetic


def _arithmetic(b: Builder, name: str, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    left, right = together(b, [x, y], b.out.dtype)
    if alpha != 1:  # which ATen rounds to the dtype, but not the product
        left, right, factor = (b.convert(v, compute_dtype(b.out.dtype)) for v in (left, right, b.like(right, alpha)))
        right = b.binary("and" if right.dtype == torch.bool else "multiply", right, factor)
    if left.dtype == torch.bool:
        name = {"add": "or"}[name]
    return b.convert(b.binary(name, left, right), b.out.dtype)


def _factors(b: Builder, x: Operand, y: Operand) -> list[Value]:
    """Operands in the result's dtype; but where that has 16 bits and cannot hold the second, a number or 0-d tensor, in float32, in
    which ATen's CPU kernels take it (`opmath_t` in BinaryOpsKernel.cpp)."""
    left, right = together(b, [x, y], b.out.dtype)
    if not _holds(b.out.dtype, y):
        wide = compute_dtype(b.out.dtype)
        left, right = b.convert(left, wide), b.value(y, wide, b.out.shape)
    return [left, right]


def _holds(dtype: torch.dtype, operand: Operand) -> bool:
    if isinstance(operand, Value):
        return operand.dtype == dtype or operand.shape != ()
    return compute_dtype(dtype) == dtype or torch.tensor(operand, dtype=dtype).item() == torch.tensor(operand, dtype=torch.float32).item()


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _arithmetic(b, "add", x, y, alpha)


@lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _arithmetic(b, "subtract", x, y, alpha)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    return _arithmetic(b, "subtract", y, x, alpha)


@lowering(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, x: Operand, y: Operand) -> Value:
    left, right = _factors(b, x, y)
    return b.convert(b.binary("and" if left.dtype == torch.bool else "multiply", left, right), b.out.dtype)


@lowering(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(b: Builder, x: Operand, y: Operand) -> Value:
    left, right = together(b, [x, y], compute_dtype(b.out.dtype))
    return b.convert(b.div(left, right), b.out.dtype)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(b, x, y)
    if not b.out.dtype.is_floating_point:
        return b.div(*together(b, [x, y], b.out.dtype))
    left, right = together(b, [x, y], compute_dtype(b.out.dtype))
    quotient = b.div(left, right)
    if isinstance(y, Value) and y.numel != 1:  # ATen's kernel truncates what it rounded to 16 bits, but not if there is one divisor
        quotient = b.convert(quotient, b.out.dtype)
    return b.convert(quotient if rounding_mode is None else trunc(b, quotient), b.out.dtype)


@lowering(aten.floor_divide.default)
def floor_divide(b: Builder, x: Operand, y: Operand) -> Value:
    """Integers round toward minus infinity; floats follow c10::div_floor_floating (exact remainder first)."""
    left, right = _factors(b, x, y)
    if not left.dtype.is_floating_point:
        quotient = b.div(left, right)
        if not left.dtype.is_signed:
            return quotient
        zero = b.like(left, 0)
        rest = b.binary("remainder", left, right)
        crosses = b.binary("and", b.compare("NE", rest, zero), b.compare("NE", b.compare("LT", rest, zero), b.compare("LT", right, zero)))
        return b.select(crosses, b.sub(quotient, b.like(quotient, 1)), quotient)
    left, right = (b.convert(v, compute_dtype(b.out.dtype)) for v in (left, right))
    zero, one = b.like(left, 0), b.like(left, 1)
    rest = b.binary("remainder", left, right)
    quotient = b.div(b.sub(left, rest), right)
    crosses = b.binary("and", b.compare("NE", rest, zero), b.compare("NE", b.compare("LT", right, zero), b.compare("LT", rest, zero)))
    quotient = b.select(crosses, b.sub(quotient, one), quotient)
    floored = b.unary("floor", quotient)
    floored = b.select(b.compare("GT", b.sub(quotient, floored), b.like(left, 0.5)), b.add(floored, one), floored)
    exact = b.div(left, right)
    signed_zero = b.mul(zero, exact)  # keeps the sign of the exact quotient
    result = b.select(b.compare("NE", quotient, zero), floored, signed_zero)
    return b.convert(b.select(b.compare("EQ", right, zero), exact, result), b.out.dtype)


@lowering(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(b: Builder, x: Operand, y: Operand) -> Value:
    """Sign of the divisor, as Python's %."""
    left, right = together(b, [x, y], b.out.dtype)
    rest = b.binary("remainder", left, right)
    if not left.dtype.is_signed:
        return rest
    zero = b.like(rest, 0)
    crosses = b.binary("and", b.compare("NE", rest, zero), b.compare("NE", b.compare("LT", rest, zero), b.compare("LT", right, zero)))
    return b.select(crosses, b.add(rest, right), rest)


@lowering(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(b: Builder, x: Operand, y: Operand) -> Value:
    """Sign of the dividend, as C's fmod."""
    return b.binary("remainder", *together(b, [x, y], b.out.dtype))


@lowering(aten.maximum.default)
def maximum(b: Builder, x: Operand, y: Operand) -> Value:
    return b.max(*together(b, [x, y], b.out.dtype))


@lowering(aten.minimum.default)
def minimum(b: Builder, x: Operand, y: Operand) -> Value:
    return b.min(*together(b, [x, y], b.out.dtype))


@lowering(aten.clamp.default, aten.clamp.Tensor)
def clamp(b: Builder, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    """min(max(x, low), high); NaN in any operand gives NaN."""
    result = b.value(x, b.out.dtype, b.out.shape)
    if low is not None:
        result = b.max(result, b.value(low, b.out.dtype, b.out.shape))
    if high is not None:
        result = b.min(result, b.value(high, b.out.dtype, b.out.shape))
    return result


@lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(b: Builder, x: Value, low: Operand) -> Value:
    return clamp(b, x, low, None)


@lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: Builder, x: Value, high: Operand) -> Value:
    return clamp(b, x, None, high)


@lowering(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(b: Builder, x: Operand, y: Operand) -> Value:
    """Small constant exponents are multiplications or roots, as in ATen's kernel."""
    dtype = b.out.dtype
    if isinstance(y, (int, float)) and not isinstance(y, bool) and isinstance(x, Value):
        base = b.value(x, compute_dtype(dtype), b.out.shape)
        known: dict[float, Callable[[], Value]] = {
            0.5: lambda: b.unary("sqrt", base),
            -0.5: lambda: b.unary("rsqrt", base),
            1: lambda: base,
            2: lambda: b.mul(base, base),
            3: lambda: b.mul(b.mul(base, base), base),
            -1: lambda: b.div(b.like(base, 1), base),
            -2: lambda: b.div(b.like(base, 1), b.mul(base, base)),
        }
        if y in known and (dtype.is_floating_point or y in (1, 2, 3)):
            return b.convert(known[y](), dtype)
    left, right = together(b, [x, y], compute_dtype(dtype))
    if not dtype.is_floating_point and not dtype.is_complex:
        return _integer_power(b, left, right)
    return b.convert(b.binary("power", left, right), dtype)


def _integer_power(b: Builder, base: Value, exponent: Value) -> Value:
    """Square and multiply over every bit of the exponent, wrapping: XLA's own reads six. A negative exponent gives 1 for base 1,
    1 or -1 for base -1, else 0, as ATen's kernel does."""

    def more(carried: list[Value]) -> Value:
        left = reduce(b, carried[2], range(carried[2].ndim), "max")
        return b.compare("GT", left, b.like(left, 0))

    def step(carried: list[Value]) -> list[Value]:
        result, square, rest = carried
        odd = b.compare("NE", b.binary("and", rest, b.like(rest, 1)), b.like(rest, 0))
        halved = b.binary("shift_right_logical", rest, b.like(rest, 1))
        return [b.select(odd, b.mul(result, square), result), b.mul(square, square), halved]

    def by_squares(exponent: Value) -> Value:
        return bounded_loop(b, [one, base, exponent], more, step, 8 * base.dtype.itemsize)[0]

    one, zero = b.like(base, 1), b.like(base, 0)
    if not base.dtype.is_signed:
        return by_squares(exponent)
    power = by_squares(b.max(exponent, zero))
    odd = b.compare("NE", b.binary("and", exponent, one), zero)
    minus = b.like(base, -1)
    inverse = b.select(b.compare("EQ", base, minus), b.select(odd, minus, one), zero)
    inverse = b.select(b.compare("EQ", base, one), one, inverse)
    return b.select(b.compare("LT", exponent, zero), inverse, power)


# Comparison and selection


def _comparison(direction: str) -> Callable[..., Value]:
    def rule(b: Builder, x: Operand, y: Operand) -> Value:
        return b.compare(direction, *together(b, [x, y]))

    return rule


for _overloads, _direction in {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}.items():
    _packet = getattr(aten, _overloads)
    lowering(_packet.Tensor, _packet.Scalar)(_comparison(_direction))


@lowering(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(b: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    left, right = together(b, [x, y], b.out.dtype)
    return b.select(b.value(condition, torch.bool, b.out.shape), left, right)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, x: Value, mask: Value, value: Operand) -> Value:
    return b.select(b.expand(mask, b.out.shape), b.value(value, b.out.dtype, b.out.shape), b.expand(x, b.out.shape))


# Conversion and copies


@lowering(aten._to_copy.default)
def to_copy(b: Builder, x: Value | Scalar, **_: Any) -> Value:
    """PyTorch's tracer writes a constant 0-d tensor as a number."""
    return b.value(x, b.out.dtype)


@lowering(prims.convert_element_type.default)
def convert_element_type(b: Builder, x: Value | Scalar, dtype: torch.dtype) -> Value:
    return b.value(x, dtype)


@lowering(
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
)
def clone(b: Builder, x: Value, **_: Any) -> Value:
    return x


@lowering(aten.copy.default)
def copy(b: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return b.value(source, x.dtype, x.shape)
