"""Convolutions written as products and sums of shifted views of the input, for those that XLA CPU runs badly as convolutions.

A tap is one position of the kernel; its view holds, for each place of the output, the input under that position.
Measured on one core: depthwise 3x3, 128 features at 28x28, batch 8: 33 ms as a convolution, 1.8 ms here (PyTorch 1.1 ms).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.structured import reduce

_PATCH_TAPS = 9
_DEPTHWISE_TAPS = 49
_STEM_FEATURES = 4


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


def _views(
    b: Builder, x: Value, window: Window, padding: Sequence[tuple[int, int]], kernel: Sequence[int], out: Sequence[int]
) -> Iterator[Value]:
    """The view [n, features, out...] of each tap, in row-major order of the kernel."""
    x = b.pad(x, 0, [0, 0, *(low for low, _ in padding)], [0, 0, *(high for _, high in padding)])
    for tap in itertools.product(*map(range, kernel)):
        starts = [t * dilation for t, dilation in zip(tap, window.dilation, strict=True)]
        limits = [start + (n - 1) * stride + 1 for start, n, stride in zip(starts, out, window.stride, strict=True)]
        yield b.slice(x, [0, 0, *starts], [*x.shape[:2], *limits], [1, 1, *window.stride])


def _patches(b: Builder, x: Value, window: Window, padding: Sequence[tuple[int, int]], kernel: Sequence[int], out: Sequence[int]) -> Value:
    """[n, features * taps, places]: the views of all taps, with the features outermost, as in a weight."""
    batch, features = x.shape[:2]
    views = [b.reshape(view, (batch, features, 1, math.prod(out))) for view in _views(b, x, window, padding, kernel, out)]
    return b.reshape(b.concat(views, 2), (batch, features * len(views), math.prod(out)))


def weight_outweighs(w: Value, window: Window, shape: Sequence[int]) -> bool:
    """Whether XLA CPU spends more on bringing the weight into its layout, on every call, than patches of the input would cost.

    512 features at 7x7, 3x3 kernel, one core: 17 ms as a convolution, 4 ms by patches; 128 at 28x28: 3.4 and 4.5.
    """
    places = shape[0] * math.prod(shape[2:])
    return window.groups == 1 and math.prod(w.shape[2:]) <= _PATCH_TAPS and places <= 2 * w.shape[0]


def by_patches(b: Builder, x: Value, w: Value, window: Window, padding: Sequence[tuple[int, int]], shape: Sequence[int]) -> Value:
    """Result [n, out, ...] of `shape` as one product of the weight, as it lies in memory, with the patches of x."""
    patches = _patches(b, x, window, padding, w.shape[2:], shape[2:])
    product = dot_general(b, b.reshape(w, (w.shape[0], patches.shape[1])), patches, ((1,), (1,)))
    return b.reshape(b.transpose(product, (1, 0, 2)), shape)


def patches_are_few(window: Window, shape: Sequence[int]) -> bool:
    """Whether a weight gradient of `shape` is better made by patches: pointwise kernels, and those over an image's few channels."""
    taps = math.prod(shape[2:])
    return window.groups == 1 and (taps == 1 or (shape[1] <= _STEM_FEATURES and taps <= _DEPTHWISE_TAPS))


def weight_gradient_by_patches(
    b: Builder, x: Value, grad: Value, window: Window, padding: Sequence[tuple[int, int]], shape: Sequence[int]
) -> Value:
    """Weight gradient [out, in, ...] of `shape`: for each sample grad times the patches of x, summed over samples."""
    patches = _patches(b, x, window, padding, shape[2:], grad.shape[2:])
    rows = b.reshape(grad, (*grad.shape[:2], patches.shape[2]))
    return b.reshape(reduce(b, dot_general(b, rows, patches, ((2,), (2,)), ((0,), (0,))), (0,), "add"), shape)


def is_depthwise(window: Window, features: int, w: Value) -> bool:
    """Whether each feature has a kernel of its own, of few enough taps, and gives one feature."""
    return window.groups > 1 and window.groups == features == w.shape[0] and w.shape[1] == 1 and math.prod(w.shape[2:]) <= _DEPTHWISE_TAPS


def is_depthwise_gradient(window: Window, x: Value, grad: Value) -> bool:
    """Whether each feature of x had a kernel of its own that gave one feature of grad."""
    return window.groups > 1 and window.groups == x.shape[1] == grad.shape[1]


def depthwise_by_taps(b: Builder, x: Value, w: Value, window: Window, padding: Sequence[tuple[int, int]], shape: Sequence[int]) -> Value:
    """Result [n, features, ...] of `shape`, with w [features, 1, ...]: the sum of each tap's view times its weight."""
    taps = b.reshape(w, (w.shape[0], math.prod(w.shape[2:])))
    total: Value | None = None
    for number, view in enumerate(_views(b, x, window, padding, w.shape[2:], shape[2:])):
        weight = b.reshape(b.slice_dim(taps, 1, number, number + 1), (w.shape[0],))
        term = b.mul(view, b.broadcast(weight, view.shape, (1,)))
        total = term if total is None else b.add(total, term)
    assert total is not None
    return total


def depthwise_weight_gradient(
    b: Builder, x: Value, grad: Value, window: Window, padding: Sequence[tuple[int, int]], shape: Sequence[int]
) -> Value:
    """Weight gradient [features, 1, ...] of `shape`: for each tap the sum of grad times the tap's view."""
    inside = [0, *range(2, grad.ndim)]
    views = _views(b, x, window, padding, shape[2:], grad.shape[2:])
    sums = [b.unsqueeze(reduce(b, b.mul(view, grad), inside, "add"), 1) for view in views]
    return b.reshape(b.concat(sums, 1), shape)
