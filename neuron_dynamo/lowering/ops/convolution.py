"""Convolution and its gradients as stablehlo.convolution. Definitions: aten::convolution and aten::convolution_backward.

Activations stay in torch's layout (batch, feature, spatial) and weights in torch's (out, in / groups, spatial): XLA CPU turns every
convolution into its own layout and lets layout assignment remove the transposes between neighbours, so that transposes written
here would only make the program larger. float16 and bfloat16 accumulate in float32 and round once, as ATen's CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import convolution as emit_convolution
from neuron_dynamo.lowering.structured import dot_general, reduce, total

aten = torch.ops.aten


@dataclass(frozen=True)
class Window:
    """Stride, padding (both sides) and dilation of each spatial dim, and the group count: those of the untransposed convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def make(spatial: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Window:
        """ATen's arguments, of which a list of one element serves every spatial dim."""
        full = [tuple(v) if len(v) == spatial else (v[0],) * spatial for v in (stride, padding, dilation)]
        return Window(full[0], full[1], full[2], groups)

    @property
    def dims(self) -> Iterator[tuple[int, int, int]]:
        """(stride, padding, dilation) of each spatial dim."""
        return zip(self.stride, self.padding, self.dilation, strict=True)


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
    if _weight_outweighs(b, w, window, shape):
        return _by_patches(b, x, w, window, padding, shape)
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


_PATCH_TAPS = 9


def _weight_outweighs(b: Builder, w: Value, window: Window, shape: Sequence[int]) -> bool:
    """Whether XLA CPU spends more on bringing the weight into its layout, on every call, than patches of x would cost.

    512 features at 7x7, 3x3 kernel, one core: 17 ms as a convolution, 4 ms by patches; 128 at 28x28: 3.4 and 4.5.
    """
    places = shape[0] * math.prod(shape[2:])
    return b.target.is_host and window.groups == 1 and math.prod(w.shape[2:]) <= _PATCH_TAPS and places <= 2 * w.shape[0]


def _by_patches(b: Builder, x: Value, w: Value, window: Window, padding: Sequence[tuple[int, int]], shape: Sequence[int]) -> Value:
    """`_forward` as one product of the weight, as it lies in memory, with the patches of x under the kernel."""
    batch, features, kernel, out = x.shape[0], x.shape[1], w.shape[2:], shape[2:]
    places = math.prod(out)
    x = b.pad(x, 0, [0, 0, *(low for low, _ in padding)], [0, 0, *(high for _, high in padding)])
    taps = []
    for tap in _positions(kernel):
        starts = [t * dilation for t, (_, _, dilation) in zip(tap, window.dims, strict=True)]
        limits = [start + (n - 1) * stride + 1 for start, n, stride in zip(starts, out, window.stride, strict=True)]
        seen = b.slice(x, [0, 0, *starts], [batch, features, *limits], [1, 1, *window.stride])
        taps.append(b.reshape(seen, (batch, features, 1, places)))
    patches = b.reshape(b.concat(taps, 2), (batch, features * len(taps), places))
    product = dot_general(b, b.reshape(w, (w.shape[0], features * len(taps))), patches, ((1,), (1,)))
    return b.reshape(b.transpose(product, (1, 0, 2)), shape)


def _transposed(b: Builder, x: Value, w: Value, window: Window, shape: Sequence[int]) -> Value:
    """The adjoint of `_forward` in its first argument: x [n, out, ...] with w [out, in / groups, ...] gives [n, in, ...].

    `shape` decides how much of the border is computed, which is what output_padding means.
    """
    spatial = x.ndim - 2
    groups = window.groups
    kernel = w.shape[2:]
    w = b.reverse(w, [d for d in range(2, w.ndim) if w.shape[d] > 1])
    rhs = "io"
    if groups > 1:
        # The kernel's input features are those of one group, its output features those of all groups in turn.
        out, inner = w.shape[0] // groups, w.shape[1]
        w = b.transpose(b.reshape(w, (groups, out, inner, *kernel)), (0, 2, 1, *range(3, 3 + spatial)))
        w = b.reshape(w, (groups * inner, out, *kernel))
        rhs = "oi"
    padding = []
    for n, k, size, (stride, pad, dilation) in zip(x.shape[2:], kernel, shape[2:], window.dims, strict=True):
        reach = (k - 1) * dilation
        low = reach - pad
        padding.append((low, size + reach - ((n - 1) * stride + 1) - low))
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
            gradient = _depthwise_weight_gradient if _is_depthwise(large, small, window) else _weight_gradient
            grad_w = b.convert(gradient(b, large, small, window, w.shape), w.dtype)
    if output_mask[2]:
        grad_bias = b.convert(total(b, grad, [d for d in range(grad.ndim) if d != 1]), x.dtype)
    return grad_x, grad_w, grad_bias


def _is_depthwise(x: Value, grad: Value, window: Window) -> bool:
    return window.groups > 1 and window.groups == x.shape[1] == grad.shape[1]


def _depthwise_weight_gradient(b: Builder, x: Value, grad: Value, window: Window, shape: Sequence[int]) -> Value:
    """As `_weight_gradient` for one feature a group: each kernel element is a sum of products over a shifted x, which XLA
    fuses; its grouped convolution is two orders of magnitude slower."""
    spatial = x.ndim - 2
    high = []
    for n, m, k, (stride, pad, dilation) in zip(x.shape[2:], grad.shape[2:], shape[2:], window.dims, strict=True):
        high.append((k - 1) * dilation + (m - 1) * stride + 1 - n - pad)
    x = b.pad(x, 0, [0, 0, *window.padding], [0, 0, *high])
    taps = []
    for tap in _positions(shape[2:]):
        starts = [0, 0, *(t * d for t, d in zip(tap, window.dilation, strict=True))]
        limits = [*x.shape[:2], *(s + (m - 1) * stride + 1 for s, m, stride in zip(starts[2:], grad.shape[2:], window.stride, strict=True))]
        shifted = b.slice(x, starts, limits, [1, 1, *window.stride])
        taps.append(b.unsqueeze(reduce(b, b.mul(shifted, grad), [0, *range(2, 2 + spatial)], "add"), 1))
    return b.reshape(b.concat(taps, 1), shape)


def _positions(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """All index tuples below `sizes`, in row-major order."""
    positions: list[tuple[int, ...]] = [()]
    for size in sizes:
        positions = [(*p, i) for p in positions for i in range(size)]
    return positions
