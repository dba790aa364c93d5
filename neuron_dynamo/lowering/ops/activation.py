"""Activation functions whose PyTorch decomposition is larger than need be. Definitions: PyTorch's documentation of each op.

Float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.ops.elementwise import widened
from neuron_dynamo.lowering.ops.special import erf_of
from neuron_dynamo.lowering.registry import lowering

aten = torch.ops.aten

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


def scaled(b: Builder, x: Value, factor: Scalar) -> Value:
    """x * factor, without an op where factor is 1."""
    return x if factor == 1 else b.mul(x, b.like(x, factor))


def _with_gradient(b: Builder, grad: Value, x: Value, body: Callable[[Value, Value], Value]) -> Value:
    """body(grad, x) on both widened to the compute dtype, rounded to the result's dtype."""
    wide = compute_dtype(b.out.dtype)
    return b.convert(body(b.convert(grad, wide), b.convert(x, wide)), b.out.dtype)


def _tanh_inner(b: Builder, x: Value) -> Value:
    """sqrt(2/pi) * (x + 0.044715 x^3), as x * (a + c x^2)."""
    inner = b.add(b.mul(b.mul(x, x), b.like(x, _TANH_SCALE * _TANH_CUBIC)), b.like(x, _TANH_SCALE))
    return b.mul(x, inner)


@lowering(aten.gelu.default)
def gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    """x/2 + x/2 * f(x): f is erf(x / sqrt(2)), or its tanh approximation."""

    def body(wide: Value) -> Value:
        half = b.mul(wide, b.like(wide, 0.5))
        if approximate == "tanh":
            return b.add(half, b.mul(half, b.unary("tanh", _tanh_inner(b, wide))))
        return b.add(half, b.mul(half, erf_of(b, b.mul(wide, b.like(wide, math.sqrt(0.5))))))

    return widened(b, x, body)


@lowering(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad: Value, x: Value, approximate: str = "none") -> Value:
    def by_erf(grad: Value, x: Value) -> Value:
        half = b.like(x, 0.5)
        cumulative = b.add(half, b.mul(half, erf_of(b, b.mul(x, b.like(x, math.sqrt(0.5))))))
        square = b.mul(x, x)
        density = b.mul(b.unary("exponential", b.mul(square, b.like(x, -0.5))), b.like(x, 1 / math.sqrt(2 * math.pi)))
        return b.mul(grad, b.add(cumulative, b.mul(x, density)))

    def by_tanh(grad: Value, x: Value) -> Value:
        """With t = tanh(u(x)): (1 + t) / 2 + x/2 * (1 - t^2) * u'(x)."""
        half, one = b.like(x, 0.5), b.like(x, 1)
        tanh = b.unary("tanh", _tanh_inner(b, x))
        slope = b.add(b.mul(b.mul(x, x), b.like(x, 3 * _TANH_SCALE * _TANH_CUBIC)), b.like(x, _TANH_SCALE))
        curve = b.mul(b.mul(x, b.sub(one, b.mul(tanh, tanh))), slope)  # in this order: x * slope overflows where 1 - t^2 is 0
        return b.mul(grad, b.mul(half, b.add(b.add(one, tanh), curve)))

    return _with_gradient(b, grad, x, by_tanh if approximate == "tanh" else by_erf)


@lowering(aten.silu.default)
def silu(b: Builder, x: Value) -> Value:
    return widened(b, x, lambda wide: b.mul(wide, b.unary("logistic", wide)))


@lowering(aten.silu_backward.default)
def silu_backward(b: Builder, grad: Value, x: Value) -> Value:
    """grad * s * (1 + x * (1 - s)) with s = sigmoid(x)."""

    def body(grad: Value, x: Value) -> Value:
        one, sigmoid = b.like(x, 1), b.unary("logistic", x)
        return b.mul(b.mul(grad, sigmoid), b.add(one, b.mul(x, b.sub(one, sigmoid))))

    return _with_gradient(b, grad, x, body)


@lowering(aten.leaky_relu.default)
def leaky_relu(b: Builder, x: Value, negative_slope: Scalar = 0.01) -> Value:
    return widened(b, x, lambda wide: b.select(b.compare("GT", wide, b.like(wide, 0)), wide, scaled(b, wide, negative_slope)))


@lowering(aten.elu.default)
def elu(b: Builder, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Value:
    """scale * x above 0, alpha * scale * expm1(input_scale * x) from 0 down."""

    def body(wide: Value) -> Value:
        below = scaled(b, b.unary("exponential_minus_one", scaled(b, wide, input_scale)), alpha * scale)
        return b.select(b.compare("GT", wide, b.like(wide, 0)), scaled(b, wide, scale), below)

    return widened(b, x, body)


@lowering(aten.hardtanh.default)
def hardtanh(b: Builder, x: Value, min_val: Scalar = -1, max_val: Scalar = 1) -> Value:
    return b.min(b.max(x, b.like(x, min_val)), b.like(x, max_val))


@lowering(aten.softplus.default)
def softplus(b: Builder, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    """log1p(exp(beta * x)) / beta, and x itself where beta * x passes the threshold."""

    def body(wide: Value) -> Value:
        inner = scaled(b, wide, beta)
        soft = b.unary("log_plus_one", b.unary("exponential", inner))
        soft = soft if beta == 1 else b.div(soft, b.like(soft, beta))
        return b.select(b.compare("GT", inner, b.like(inner, threshold)), wide, soft)

    return widened(b, x, body)


@lowering(aten.softplus_backward.default)
def softplus_backward(b: Builder, grad: Value, x: Value, beta: Scalar, threshold: Scalar) -> Value:
    def body(grad: Value, x: Value) -> Value:
        inner = scaled(b, x, beta)
        return b.select(b.compare("GT", inner, b.like(inner, threshold)), grad, b.mul(grad, b.unary("logistic", inner)))

    return _with_gradient(b, grad, x, body)


@lowering(aten.softshrink.default)
def softshrink(b: Builder, x: Value, lambd: Scalar = 0.5) -> Value:
    """x moved towards 0 by lambd, and 0 (NaN for NaN) where that would pass 0."""

    def body(wide: Value) -> Value:
        limit = b.like(wide, lambd)
        small = b.select(b.compare("LT", wide, b.neg(limit)), b.add(wide, limit), b.mul(wide, b.like(wide, 0)))
        return b.select(b.compare("GT", wide, limit), b.sub(wide, limit), small)

    return widened(b, x, body)


@lowering(aten.softshrink_backward.default, aten.hardshrink_backward.default)
def shrink_backward(b: Builder, grad: Value, x: Value, lambd: Scalar) -> Value:
    """0 where -lambd <= x <= lambd, else grad."""

    def body(grad: Value, x: Value) -> Value:
        return b.select(b.compare("LE", b.unary("abs", x), b.like(x, lambd)), b.like(grad, 0), grad)

    return _with_gradient(b, grad, x, body)
