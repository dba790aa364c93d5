"""Affine quantisation: ops of torch.ao.quantization's library `quantized_decomposed`, which PyTorch defines in Python
(torch/ao/quantization/fx/_decomposed.py), and ATen's fake quantisation. A quantised tensor is one of integers; scale and zero point
travel beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce

aten = torch.ops.aten
_LIBRARY = "quantized_decomposed"
_LOW = (torch.float16, torch.bfloat16)


def _single(b: Builder, x: Value | Scalar, dtype: torch.dtype) -> Value:
    """A scalar, or a tensor of one element, as a 0-d Value of `dtype`."""
    return b.convert(b.reshape(x, ()), dtype) if isinstance(x, Value) else b.scalar(x, dtype)


def _along(b: Builder, x: Value, axis: int, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
    """A vector along dim `axis` of `shape`."""
    return b.broadcast(b.convert(x, dtype), shape, (axis % len(shape),))


def _clamped(b: Builder, x: Value, low: Value | Scalar, high: Value | Scalar) -> Value:
    bounds = [b.expand(_single(b, bound, x.dtype), x.shape) for bound in (low, high)]
    return b.convert(b.min(b.max(x, bounds[0]), bounds[1]), b.out.dtype)


@lowering(*[f"{_LIBRARY}.quantize_per_tensor.{name}" for name in ("default", "tensor", "tensor2")])
def quantize_per_tensor(
    b: Builder, x: Value, scale: Value | Scalar, zero: Value | Scalar, low: Value | Scalar, high: Value | Scalar, *_: Any
) -> Value:
    """clamp(round(x / scale) + zero, low, high); the division is a product with the reciprocal."""
    x = b.convert(x, torch.float32)
    if isinstance(scale, Value):
        inverse = b.convert(b.div(b.scalar(1, scale.dtype), _single(b, scale, scale.dtype)), torch.float32)
    else:
        inverse = b.scalar(1.0 / float(scale.real), torch.float32)
    rounded = b.unary("round_nearest_even", b.mul(x, b.expand(inverse, x.shape)))
    return _clamped(b, b.add(rounded, b.expand(_single(b, zero, torch.float32), x.shape)), low, high)


@lowering(*[f"{_LIBRARY}.dequantize_per_tensor.{name}" for name in ("default", "tensor", "tensor2")])
def dequantize_per_tensor(b: Builder, x: Value, scale: Value | Scalar, zero: Value | Scalar, *_: Any, **__: Any) -> Value:
    """(x - zero) * scale in the result's dtype."""
    wide = torch.float32 if b.out.dtype in _LOW else b.out.dtype
    scale, zero = (b.expand(_single(b, v, wide), x.shape) for v in (scale, zero))
    shifted = b.sub(b.convert(b.convert(x, b.out.dtype), wide), zero)
    shifted = b.convert(b.convert(shifted, b.out.dtype), wide)
    return b.convert(b.mul(shifted, scale), b.out.dtype)


@lowering(f"{_LIBRARY}.quantize_per_channel.default")
def quantize_per_channel(b: Builder, x: Value, scales: Value, zeros: Value, axis: int, low: int, high: int, *_: Any) -> Value:
    """The same with a scale and a zero point for each index of dim `axis`."""
    dtype = torch.promote_types(torch.float32, scales.dtype)
    inverse = b.div(b.full(scales.shape, 1, scales.dtype), scales)
    scaled = b.mul(b.convert(x, dtype), _along(b, inverse, axis, x.shape, dtype))
    return _clamped(b, b.add(b.unary("round_nearest_even", scaled), _along(b, zeros, axis, x.shape, dtype)), low, high)


@lowering(f"{_LIBRARY}.dequantize_per_channel.default")
def dequantize_per_channel(b: Builder, x: Value, scales: Value, zeros: Value | None, axis: int, *_: Any, **__: Any) -> Value:
    """(x - zeros) * scales along dim `axis`."""
    if zeros is not None:
        wide = torch.promote_types(x.dtype, zeros.dtype)
        x = b.sub(b.convert(x, wide), _along(b, zeros, axis, x.shape, wide))
    return b.convert(b.mul(b.convert(x, scales.dtype), _along(b, scales, axis, x.shape, scales.dtype)), b.out.dtype)


@lowering(f"{_LIBRARY}.quantize_per_token.default")
def quantize_per_token(b: Builder, x: Value, scales: Value, zeros: Value, low: int, high: int, *_: Any) -> Value:
    """clamp(round(x / scales + zeros), low, high) for scales and zeros [..., 1]."""
    dtype = torch.promote_types(x.dtype, scales.dtype)
    inverse = b.div(b.full(scales.shape, 1, scales.dtype), scales)
    scaled = b.mul(b.convert(x, dtype), b.value(inverse, dtype, x.shape))
    return _clamped(b, b.unary("round_nearest_even", b.add(scaled, b.value(zeros, dtype, x.shape))), low, high)


@lowering(f"{_LIBRARY}.dequantize_per_token.default")
def dequantize_per_token(b: Builder, x: Value, scales: Value, zeros: Value, *_: Any) -> Value:
    """(x - zeros) * scales for scales and zeros [..., 1]."""
    wide = torch.promote_types(x.dtype, zeros.dtype)
    shifted = b.convert(b.sub(b.convert(x, wide), b.value(zeros, wide, x.shape)), scales.dtype)
    return b.convert(b.mul(shifted, b.expand(scales, x.shape)), b.out.dtype)


def _choose_guard(x: torch.Tensor, *_: Any) -> str | None:
    return None if x.dtype == torch.float32 and x.numel() else f"{x.dtype} or no elements"


@lowering(f"{_LIBRARY}.choose_qparams.tensor", guard=_choose_guard)
def choose_qparams(b: Builder, x: Value, low: int, high: int, eps: float, *_: Any) -> tuple[Value, Value]:
    """Scale [1] and zero point [1] that map the range of x, widened to hold 0, onto [low, high]; scale is at least eps."""
    dims = range(x.ndim)
    zero = b.scalar(0, x.dtype)
    least, most = b.min(reduce(b, x, dims, "min"), zero), b.max(reduce(b, x, dims, "max"), zero)
    scale = b.div(b.sub(most, least), b.scalar(float(high - low), x.dtype))
    scale = b.max(scale, b.scalar(eps, x.dtype))
    steps = b.convert(b.unary("round_nearest_even", b.div(least, scale)), torch.int32)
    point = b.sub(b.scalar(low, torch.int32), steps)
    point = b.min(b.max(point, b.scalar(low, torch.int32)), b.scalar(high, torch.int32))
    return b.convert(b.reshape(scale, (1,)), torch.float64), b.convert(b.reshape(point, (1,)), torch.int64)


# Fake quantisation: there and back in one op, with a mask of what was in range


def _fake(b: Builder, x: Value, scale_and_zero: Sequence[Value], low: int, high: int) -> tuple[Value, Value]:
    """Scale and zero point are float32 of x's shape."""
    scale, zero = scale_and_zero
    wide = b.convert(x, torch.float32)
    quantised = b.add(zero, b.unary("round_nearest_even", b.mul(wide, b.div(b.like(scale, 1), scale))))
    least, most = b.like(quantised, low), b.like(quantised, high)
    inside = b.binary("and", b.compare("GE", quantised, least), b.compare("LE", quantised, most))
    back = b.mul(b.sub(b.min(b.max(quantised, least), most), zero), scale)
    return b.convert(back, x.dtype), inside


@lowering(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize(b: Builder, x: Value, scale: float, zero: int, low: int, high: int) -> tuple[Value, Value]:
    return _fake(b, x, [b.full(x.shape, v, torch.float32) for v in (scale, zero)], low, high)


@lowering(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_by_tensors(b: Builder, x: Value, scale: Value, zero: Value, enabled: Value, low: int, high: int) -> tuple[Value, Value]:
    """Where `enabled` is 0, x itself and a mask of ones."""
    quantised, inside = _fake(b, x, [b.expand(_single(b, v, torch.float32), x.shape) for v in (scale, zero)], low, high)
    on = b.expand(b.compare("NE", b.reshape(enabled, ()), b.scalar(0, enabled.dtype)), x.shape)
    return b.select(on, quantised, x), b.select(on, inside, b.like(inside, True))


def _channel_guard(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, *_: Any) -> str | None:
    return "zero points that are no integers" if zero.dtype.is_floating_point else None


@lowering(aten.fake_quantize_per_channel_affine_cachemask.default, guard=_channel_guard)
def fake_quantize_per_channel(b: Builder, x: Value, scale: Value, zero: Value, axis: int, low: int, high: int) -> tuple[Value, Value]:
    return _fake(b, x, [_along(b, v, axis, x.shape, torch.float32) for v in (scale, zero)], low, high)
