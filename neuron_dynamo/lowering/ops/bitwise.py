"""Logic, of truth values and of bits, and shifts. Definitions: the ATen schemas and PyTorch's documentation of each op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import lowering

aten = torch.ops.aten
Operand = Value | Scalar


def _logical(name: str) -> Callable[..., Value]:
    def rule(b: Builder, x: Value, y: Value) -> Value:
        return b.binary(name, *together(b, [x, y], torch.bool))

    return rule


lowering(aten.logical_and.default)(_logical("and"))
lowering(aten.logical_or.default)(_logical("or"))
lowering(aten.logical_xor.default)(_logical("xor"))


@lowering(aten.logical_not.default)
def logical_not(b: Builder, x: Value) -> Value:
    return b.compare("EQ", x, b.like(x, 0))


def _bitwise(name: str) -> Callable[..., Value]:
    def rule(b: Builder, x: Operand, y: Operand) -> Value:
        return b.binary(name, *together(b, [x, y], b.out.dtype))

    return rule


for _name in ("and", "or", "xor"):
    _packet = getattr(aten, f"bitwise_{_name}")
    lowering(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(_bitwise(_name))


@lowering(aten.bitwise_not.default)
def bitwise_not(b: Builder, x: Value) -> Value:
    return b.unary("not", x)


# Shifts


@lowering(aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_left_shift.Scalar_Tensor)
def left_shift(b: Builder, x: Operand, y: Operand) -> Value:
    """A count that is negative or not below the width gives 0, as ATen's kernel does."""
    left, count = together(b, [x, y], b.out.dtype)
    return b.select(_in_width(b, count), b.binary("shift_left", left, count), b.like(left, 0))


@lowering(aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar, aten.bitwise_right_shift.Scalar_Tensor)
def right_shift(b: Builder, x: Operand, y: Operand) -> Value:
    """Arithmetic for signed types; a count that is negative or not below the width shifts everything but the sign out."""
    left, count = together(b, [x, y], b.out.dtype)
    if not left.dtype.is_signed:
        return b.select(_in_width(b, count), b.binary("shift_right_logical", left, count), b.like(left, 0))
    shifted = _shift_right(b, left, count)
    nothing = _shift_right(b, left, b.like(left, 8 * left.dtype.itemsize - 1))
    return b.select(_in_width(b, count), shifted, nothing)


def _shift_right(b: Builder, x: Value, count: Value) -> Value:
    """Arithmetic shift of a signed x; where the target has it only for 32 bits, as a logical one of x or of its complement."""
    if x.dtype == torch.int32 or "shift_right_arithmetic.any_width" in b.target.ops:
        return b.binary("shift_right_arithmetic", x, count)
    negative = b.compare("LT", x, b.like(x, 0))
    shifted = b.binary("shift_right_logical", b.select(negative, b.logical_not(x), x), count)
    return b.select(negative, b.logical_not(shifted), shifted)


def _in_width(b: Builder, count: Value) -> Value:
    fits = b.compare("LT", count, b.like(count, 8 * count.dtype.itemsize))
    return b.binary("and", fits, b.compare("GE", count, b.like(count, 0))) if count.dtype.is_signed else fits


def _integers_only(x: Any, y: Any) -> str | None:
    floating = any(isinstance(v, float) or (isinstance(v, torch.Tensor) and v.dtype.is_floating_point) for v in (x, y))
    return "a shift of floating-point numbers" if floating else None


lowering(aten.__lshift__.Tensor, aten.__lshift__.Scalar, guard=_integers_only)(left_shift)
lowering(aten.__rshift__.Tensor, aten.__rshift__.Scalar, guard=_integers_only)(right_shift)
