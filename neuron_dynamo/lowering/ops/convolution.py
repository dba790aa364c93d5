"""Convolution and its gradients as stablehlo.convolution. Definitions: aten::convolution and aten::convolution_backward.

Activations stay in torch's layout (batch, feature, spatial) and weights in torch's (out, in / groups, spatial): XLA CPU turns every
convolution into its own layout and lets layout assignment remove the transposes between neighbours, so that transposes written
here would only make the program larger. Where it runs a convolution badly, the host gets another form (convolution_forms.py).
float16 and bfloat16 accumulate in float32 and round once, as ATen's CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.contraction import convolution as emit_convolution
from neuron_dynamo.lowering.convolution_forms import (
    Window,
    by_patches,
    depthwise_by_taps,
    depthwise_weight_gradient,
    is_depthwise,
    is_depthwise_gradient,
    patches_are_few,
    weight_gradient_by_patches,
    weight_outweighs,
)
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import total

aten = torch.ops.aten


def _layout(lhs: str, rhs: str, out: str, spatial: int) -> tuple[str, str, str]:
    digits = "0123456789"[:spatial]
    return lhs + digits, rhs + digits, out + digits


def _forward(b: Builder, x: Value, w: Value, window: Window, shape: Sequence[int]) -> Value:
    """x [n, in, ...] with w [out, in / groups, ...]; `shape` may stop short of what x would give (gradients with output_padding)."""
    spatial = x.ndim - 2
    padding = []
    for n, k, out, (stride, pad, dilation) in zip(x.shape[2:], w.shape[2:], shape[2:], window.dims, strict=True):
        reach = (k - 1) * dilation + 1
        exact = (n + 2 * pad - reach) // stride + 1 == out
        padding.append((pad, pad if exact else (out - 1) * stride + reach - n - pad))
    if b.target.is_host:
        if is_depthwise(window, x.shape[1], w):
            return depthwise_by_taps(b, x, w, window, padding, shape)
        if weight_outweighs(w, window, shape):
            return by_patches(b, x, w, window, padding, shape)
    return emit_convolution(
        b,
        x,
        w,
        layout=_layout("bf", "oi", "bf", spatial),
        strides=window.stride,
        padding=padding,
        lhs_dilation=[1] * spatial,
        rhs_dilation=window.dilation,
        shape=shape,
        groups=window.groups,
    )


def _transposed(b: Builder, x: Value, w: Value, window: Window, shape: Sequence[int]) -> Value:
    """The adjoint of `_forward` in its first argument: x [n, out, ...] with w [out, in / groups, ...] gives [n, in, ...].

    `shape` decides how much of the border is computed, which is what output_padding means.
    """
    spatial = x.ndim - 2
    groups = window.groups
    kernel = w.shape[2:]
    padding = []
    for n, k, size, (stride, pad, dilation) in zip(x.shape[2:], kernel, shape[2:], window.dims, strict=True):
        reach = (k - 1) * dilation
        low = reach - pad
        padding.append((low, size + reach - ((n - 1) * stride + 1) - low))
    w = b.reverse(w, [d for d in range(2, w.ndim) if w.shape[d] > 1])
    if b.target.is_host and is_depthwise(window, x.shape[1], w):
        x = b.pad(x, 0, [0] * x.ndim, [0] * x.ndim, [0, 0, *(stride - 1 for stride in window.stride)])
        return depthwise_by_taps(b, x, w, Window((1,) * spatial, (0,) * spatial, window.dilation, groups), padding, shape)
    rhs = "io"
    if groups > 1:
        # The kernel's input features are those of one group, its output features those of all groups in turn.
        out, inner = w.shape[0] // groups, w.shape[1]
        w = b.transpose(b.reshape(w, (groups, out, inner, *kernel)), (0, 2, 1, *range(3, 3 + spatial)))
        w = b.reshape(w, (groups * inner, out, *kernel))
        rhs = "oi"
    return emit_convolution(
        b,
        x,
        w,
        layout=_layout("bf", rhs, "bf", spatial),
        strides=[1] * spatial,
        padding=padding,
        lhs_dilation=window.stride,
        rhs_dilation=window.dilation,
        shape=shape,
        groups=groups,
    )


def _weight_gradient(b: Builder, x: Value, grad: Value, window: Window, shape: Sequence[int]) -> Value:
    """Gradient [out, in / groups, ...] of `_forward` in w, from x [n, in, ...] and grad [n, out, ...].

    It is a convolution of x with grad as the kernel, in which batch and features change places.
    """
    spatial = x.ndim - 2
    groups = window.groups
    padding = []
    for n, m, k, (stride, pad, dilation) in zip(x.shape[2:], grad.shape[2:], shape[2:], window.dims, strict=True):
        padding.append((pad, (k - 1) * dilation + (m - 1) * stride + 1 - n - pad))
    if is_depthwise_gradient(window, x, grad):
        return depthwise_weight_gradient(b, x, grad, window, padding, shape)
    if b.target.is_host and patches_are_few(window, shape):
        return weight_gradient_by_patches(b, x, grad, window, padding, shape)
    lhs, result = "fb", "fb"
    if groups > 1:
        # Groups lie along in-features of x and out-features of grad. As features of one grouped convolution: x [n, g * in] becomes
        # [in, g * n], so that feature group g of the batch meets output features of group g.
        n, inner, sizes = x.shape[0], x.shape[1] // groups, x.shape[2:]
        x = b.transpose(b.reshape(x, (n, groups, inner, *sizes)), (2, 1, 0, *range(3, 3 + spatial)))
        x = b.reshape(x, (inner, groups * n, *sizes))
        lhs = "bf"
    return emit_convolution(
        b,
        x,
        grad,
        layout=_layout(lhs, "io", result, spatial),
        strides=window.dilation,
        padding=padding,
        lhs_dilation=[1] * spatial,
        rhs_dilation=window.stride,
        shape=shape,
        groups=groups,
    )


@lowering(aten.convolution.default)
def convolution(
    b: Builder,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """x [n, in, spatial...]; w [out, in / groups, kernel...], or [in, out / groups, kernel...] if transposed; bias [out]."""
    shape, dtype = b.out.shape, compute_dtype(x.dtype)
    if not x.numel or not w.numel or not math.prod(shape):
        result = b.full(shape, 0, dtype)
    else:
        window = Window.make(x.ndim - 2, stride, padding, dilation, groups)
        result = (_transposed if transposed else _forward)(b, b.convert(x, dtype), b.convert(w, dtype), window, shape)
    if bias is not None:
        result = b.add(result, b.broadcast(b.convert(bias, dtype), shape, (1,)))
    return b.convert(result, b.out.dtype)


@lowering(aten.convolution_backward.default)
def convolution_backward(
    b: Builder,
    grad: Value,
    x: Value,
    w: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    """Gradients of `convolution` in x, w and bias, those that output_mask asks for."""
    dtype = compute_dtype(x.dtype)
    grad = b.convert(grad, dtype)
    window = Window.make(x.ndim - 2, stride, padding, dilation, groups)
    empty = not (grad.numel and x.numel and w.numel)
    grad_x = grad_w = grad_bias = None
    if output_mask[0]:
        if empty:
            grad_x = b.full(x.shape, 0, x.dtype)
        else:
            grad_x = b.convert((_forward if transposed else _transposed)(b, grad, b.convert(w, dtype), window, x.shape), x.dtype)
    if output_mask[1]:
        if empty:
            grad_w = b.full(w.shape, 0, w.dtype)
        else:
            large, small = (grad, b.convert(x, dtype)) if transposed else (b.convert(x, dtype), grad)
            grad_w = b.convert(_weight_gradient(b, large, small, window, w.shape), w.dtype)
    if output_mask[2]:
        grad_bias = b.convert(total(b, grad, [d for d in range(grad.ndim) if d != 1]), x.dtype)
    return grad_x, grad_w, grad_bias
