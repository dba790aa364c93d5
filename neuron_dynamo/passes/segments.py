"""Decompositions of segment_reduce and its gradient, after aten/src/ATen/native/SegmentReduce.cpp. PyTorch has none of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_SCATTER = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def segment_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten.segment_reduce.default: segment_reduce,
        aten._segment_reduce_backward.default: segment_reduce_backward,
    }


class _Segments:
    """Which segment each element along `axis` of data is in. Elements after the last segment go to one more, which `cut` drops."""

    def __init__(self, data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> None:
        self.data, self.axis = data, axis
        if offsets is not None:
            self.lengths, ends = offsets.diff(dim=-1), offsets.narrow(-1, 1, offsets.shape[-1] - 1)
        else:
            assert lengths is not None
            self.lengths, ends = lengths, lengths.cumsum(-1)
        self.count = self.lengths.shape[-1]
        position = torch.arange(data.shape[axis], device=data.device, dtype=ends.dtype).expand(*ends.shape[:-1], -1)
        number = torch.searchsorted(ends.contiguous(), position.contiguous(), right=True)
        self.number = number.reshape(*number.shape, *(1,) * (data.ndim - number.ndim)).expand(data.shape)

    def combine(self, values: Tensor, kind: str, start: float) -> Tensor:
        """Values of data's shape, combined segment by segment from `start`."""
        shape = (*self.data.shape[: self.axis], self.count + 1, *self.data.shape[self.axis + 1 :])
        return values.new_full(shape, start).scatter_reduce(self.axis, self.number, values, kind)

    def cut(self, combined: Tensor) -> Tensor:
        return combined.narrow(self.axis, 0, self.count)

    def spread(self, result: Tensor) -> Tensor:
        """Each segment's entry of `result`, at each of its elements; 0 at those outside."""
        outside = result.new_zeros((*result.shape[: self.axis], 1, *result.shape[self.axis + 1 :]))
        return torch.cat([result, outside], self.axis).gather(self.axis, self.number)

    def sizes(self, like: Tensor) -> Tensor:
        """Lengths, broadcastable to the result."""
        return self.lengths.reshape(*self.lengths.shape, *(1,) * (like.ndim - self.lengths.ndim))


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """data with dim `axis` reduced by segments of `lengths` (or between `offsets`), each from `initial`."""
    axis %= data.ndim
    segments = _Segments(data, lengths, offsets, axis)
    result = segments.cut(segments.combine(data, _SCATTER[reduce], _START[reduce] if initial is None else initial))
    if reduce != "mean":
        return result
    sizes = segments.sizes(result)
    return torch.where(sizes == 0, math.nan if initial is None else initial, result / sizes).to(data.dtype)


def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """max and min share the gradient among equal elements; a product's is that of the others."""
    axis %= data.ndim
    segments = _Segments(data, lengths, offsets, axis)
    if reduce == "sum":
        return segments.spread(grad)
    if reduce == "mean":
        return segments.spread(grad / segments.sizes(grad).to(grad.dtype))
    if reduce == "prod":
        return _product_gradient(segments, grad, output, data, 1.0 if initial is None else initial)
    hit = (data == segments.spread(output)) | data.isnan()
    ties = segments.cut(segments.combine(hit.to(data.dtype), "sum", 0.0))
    return torch.where(hit, segments.spread(grad / ties), 0)


def _product_gradient(segments: _Segments, grad: Tensor, output: Tensor, data: Tensor, initial: float) -> Tensor:
    unusable = (data == 0) | data.isnan()
    rest = segments.combine(torch.where(unusable, 1, data), "prod", initial)
    invalid = segments.combine(data.isnan().to(data.dtype), "sum", 0.0)
    several = segments.spread(segments.cut(segments.combine(unusable.to(data.dtype), "sum", 0.0))) > 1
    other_invalid = segments.spread(segments.cut(invalid)) - data.isnan().to(data.dtype) > 0
    others = torch.where(several, torch.where(other_invalid, math.nan, 0.0), segments.spread(segments.cut(rest)))
    return segments.spread(grad) * torch.where(unusable, others, segments.spread(output) / data)
