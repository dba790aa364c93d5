"""Number theory and hashing of integers: gcd, lcm, hash_tensor. Definitions: PyTorch's documentation of each op."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.loops import bounded_loop
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import normalise_dims, reduce

aten = torch.ops.aten


def _size(b: Builder, x: Value) -> Value:
    return b.unary("abs", x) if x.dtype.is_signed else x


def _gcd(b: Builder, x: Value, y: Value) -> Value:
    """Euclid's algorithm, every element until the slowest is done."""

    def more(carried: list[Value]) -> Value:
        rest = carried[1]
        return reduce(b, b.compare("NE", rest, b.like(rest, 0)), range(rest.ndim), "or")

    def step(carried: list[Value]) -> list[Value]:
        value, rest = carried
        done = b.compare("EQ", rest, b.like(rest, 0))
        divisor = b.select(done, b.like(rest, 1), rest)
        return [b.select(done, value, rest), b.select(done, rest, b.binary("remainder", value, divisor))]

    most = math.ceil(1.45 * 8 * x.dtype.itemsize)  # Lame's theorem
    return bounded_loop(b, [_size(b, x), _size(b, y)], more, step, most)[0]


@lowering(aten.gcd.default)
def gcd(b: Builder, x: Value | Scalar, y: Value | Scalar) -> Value:
    return _gcd(b, *together(b, [x, y], b.out.dtype))


@lowering(aten.lcm.default)
def lcm(b: Builder, x: Value | Scalar, y: Value | Scalar) -> Value:
    """|x / gcd * y|, 0 where both are 0. Narrow types wrap after the absolute value, as C's arithmetic makes ATen's."""
    left, right = together(b, [x, y], b.out.dtype if b.out.dtype.itemsize >= 4 else torch.int32)
    divisor = _gcd(b, left, right)
    nothing = b.compare("EQ", divisor, b.like(divisor, 0))
    quotient = b.div(left, b.select(nothing, b.like(divisor, 1), divisor))
    return b.convert(b.select(nothing, divisor, _size(b, b.mul(quotient, right))), b.out.dtype)


@lowering(aten.hash_tensor.default)
def hash_tensor(b: Builder, x: Value, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Value:
    """Exclusive or of the elements' 64-bit patterns: of floats as float64, of integers as int64."""
    if x.dtype.is_floating_point:
        words = b.emit("bitcast_convert", [b.convert(x, torch.float64)], x.shape, torch.uint64)
    else:
        words = b.convert(b.convert(x, torch.int64), torch.uint64)
    return reduce(b, words, normalise_dims(dim, x.ndim), "xor", keepdim)
