"""Decompositions of histograms with explicit edges, after aten/src/ATen/native/Histogram.cpp. PyTorch has none of its own;
histc has a rule.

A bin is closed below and open above, but for the last, which is closed; elements outside, and NaN, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def histogram_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten.histogram.bin_ct: histogram_bin_ct,
        aten.histogram.bins_tensor: histogram_bins_tensor,
        aten._histogramdd_bin_edges.default: histogramdd_bin_edges,
        aten._histogramdd_from_bin_cts.default: histogramdd_from_bin_cts,
        aten._histogramdd_from_bin_tensors.default: histogramdd_from_bin_tensors,
    }


def _counts(points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """points [N, D] counted in the D-dimensional bins between `edges`."""
    shape = [edge.shape[0] - 1 for edge in edges]
    place = torch.zeros(points.shape[0], dtype=torch.int64, device=points.device)
    inside = torch.ones(points.shape[0], dtype=torch.bool, device=points.device)
    for d, edge in enumerate(edges):
        column = points[:, d].contiguous()
        inside = inside & (column >= edge[0]) & (column <= edge[-1])
        number = (torch.searchsorted(edge, column, right=True) - 1).clamp(0, shape[d] - 1)
        place = place * shape[d] + number
    amounts = torch.ones_like(points[:, 0]) if weight is None else weight.reshape(-1)
    total = points.new_zeros(torch.Size(shape).numel())
    counts = total.index_add(0, place, torch.where(inside, amounts, 0)).reshape(shape)
    if density:
        counts = counts / counts.sum()
        for d, edge in enumerate(edges):
            counts = counts / edge.diff().reshape(-1, *(1,) * (len(edges) - 1 - d))
    return counts


def _range(points: Tensor, limits: Sequence[float] | None) -> tuple[list[Tensor], list[Tensor]]:
    """Lowest and highest edge of each dim: those given, or the data's, half a unit apart from a single value."""
    dims = points.shape[1]
    if limits:
        lows = [points.new_full((), limits[2 * d]) for d in range(dims)]
        highs = [points.new_full((), limits[2 * d + 1]) for d in range(dims)]
    elif points.shape[0]:
        lows, highs = list(points.amin(0).unbind()), list(points.amax(0).unbind())
    else:
        lows, highs = [points.new_zeros(())] * dims, [points.new_ones(())] * dims
    single = [low == high for low, high in zip(lows, highs, strict=True)]
    spread = zip(single, lows, highs, strict=True)
    pairs = [(torch.where(s, low - 0.5, low), torch.where(s, high + 0.5, high)) for s, low, high in spread]
    return [low for low, _ in pairs], [high for _, high in pairs]


def histogramdd_bin_edges(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> list[Tensor]:
    """x [..., D]: equally spaced edges of each dim, bins[d] + 1 of them."""
    lows, highs = _range(x.reshape(-1, x.shape[-1]), range)
    return [torch.linspace(low, high, count + 1, dtype=x.dtype) for low, high, count in zip(lows, highs, bins, strict=True)]


def histogramdd_from_bin_cts(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _counts(x.reshape(-1, x.shape[-1]), histogramdd_bin_edges(x, bins, range=range), weight, density)


def histogramdd_from_bin_tensors(x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False) -> Tensor:
    return _counts(x.reshape(-1, x.shape[-1]), bins, weight, density)


def histogram_bin_ct(
    x: Tensor, bins: int = 100, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """(counts, edges) of all of x's elements."""
    (edges,) = histogramdd_bin_edges(x.reshape(-1, 1), [bins], range=range)
    return _counts(x.reshape(-1, 1), [edges], weight, density), edges


def histogram_bins_tensor(x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False) -> tuple[Tensor, Tensor]:
    """(counts, edges) with the edges given."""
    return _counts(x.reshape(-1, 1), [bins], weight, density), bins.clone()
