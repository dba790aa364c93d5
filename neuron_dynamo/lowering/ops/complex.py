"""Complex tensors: making them, taking them apart, conjugates, and what tells their values apart. Definitions: PyTorch's documentation.

A graph's values are logical values: the lazy conjugate and negative bits of eager tensors are resolved where tensors enter a
program, so `_conj` and `_neg_view` compute here, and resolve_conj and resolve_neg do nothing. Outputs never carry such a bit.
Arithmetic is in elementwise.py where StableHLO's op is right for complex numbers as it stands, else in complex_math.py.
"""

from __future__ import annotations

from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.ops import complex_math
from neuron_dynamo.lowering.ops.complex_math import join, parts
from neuron_dynamo.lowering.promote import together
from neuron_dynamo.lowering.registry import complex_lowering, lowering

aten = torch.ops.aten


@lowering(aten.complex.default)
def complex_(b: Builder, real: Value, imag: Value) -> Value:
    return join(b, *together(b, [real, imag], b.out.dtype.to_real()))


@lowering(aten.polar.default)
def polar(b: Builder, size: Value, angle: Value) -> Value:
    """size * (cos(angle) + i sin(angle))."""
    size, angle = together(b, [size, angle], b.out.dtype.to_real())
    return join(b, b.mul(size, b.unary("cosine", angle)), b.mul(size, b.unary("sine", angle)))


@lowering(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(b: Builder, x: Value) -> Value:
    """The parts along a new last dim."""
    return b.concat([b.unsqueeze(part, x.ndim) for part in parts(b, x)], x.ndim)


@lowering(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(b: Builder, x: Value) -> Value:
    """Complex numbers of the parts along the last dim, of size 2."""
    real, imag = (b.reshape(b.slice_dim(x, x.ndim - 1, i, i + 1), x.shape[:-1]) for i in range(2))
    return join(b, real, imag)


@lowering(aten.real.default)
def real(b: Builder, x: Value) -> Value:
    return parts(b, x)[0] if x.dtype.is_complex else x


@lowering(aten.imag.default)
def imag(b: Builder, x: Value) -> Value:
    return parts(b, x)[1]


@lowering(aten._conj.default, aten._conj_copy.default, aten._conj_physical.default, aten.conj.default, aten.conj_physical.default)
def conj(b: Builder, x: Value) -> Value:
    return complex_math.conjugate(b, x)


@lowering(aten._neg_view.default, aten._neg_view_copy.default)
def neg_view(b: Builder, x: Value) -> Value:
    return b.neg(x)


@lowering(aten.resolve_conj.default, aten.resolve_neg.default)
def resolve(b: Builder, x: Value, *_: Any) -> Value:
    return x


@lowering(aten.sgn.default)
def sgn(b: Builder, x: Value) -> Value:
    """x / |x|, 0 at 0; the sign of real numbers."""
    from neuron_dynamo.lowering.ops.elementwise import sign

    if not x.dtype.is_complex:
        return sign(b, x)
    size = complex_math.absolute(b, x)
    zero = b.compare("EQ", size, b.like(size, 0))
    return b.select(zero, b.like(x, 0), complex_math.divided_by_real(b, x, size))


@complex_lowering(aten.abs.default)
def absolute(b: Builder, x: Value) -> Value:
    return complex_math.absolute(b, x)


@complex_lowering(aten.isinf.default)
def isinf(b: Builder, x: Value) -> Value:
    return complex_math.is_infinite(b, x)


@complex_lowering(aten.vdot.default)
def vdot(b: Builder, x: Value, y: Value) -> Value:
    from neuron_dynamo.lowering.ops.matmul import dot

    return dot(b, complex_math.conjugate(b, x), y)
