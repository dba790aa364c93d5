"""Decompositions of pairwise distances, after aten/src/ATen/native/Distance.cpp and cpu/DistanceOpsKernel.cpp. PyTorch has none of
its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_ALWAYS_PRODUCT = 1
_PRODUCT_IF_LARGE = (None, 0)


def distance_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten._cdist_forward.default: cdist_forward,
        aten._cdist_backward.default: cdist_backward,
        aten._euclidean_dist.default: euclidean_dist,
        aten._pdist_forward.default: pdist_forward,
        aten._pdist_backward.default: pdist_backward,
    }


def _norm(difference: Tensor, p: float) -> Tensor:
    """p-norm over the last dim."""
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return size.amax(-1)
    return size.pow(p).sum(-1).pow(1 / p)


def _norm_gradient(difference: Tensor, norm: Tensor, grad: Tensor, p: float) -> Tensor:
    """Gradient by `difference` of its p-norm over the last dim times `grad`; both have a last dim of 1. 0 where the norm is 0."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return grad * difference.sign()
    size = difference.abs()
    if math.isinf(p):
        return torch.where(size == norm, grad * difference.sign(), 0)
    vanishes = norm == 0
    if p == 2:
        return torch.where(vanishes, 0, grad * difference / norm)
    if p < 1:
        vanishes = vanishes | (difference == 0)
    slope = difference.sign() * size.pow(p - 1) if p < 2 else difference * size.pow(p - 2)
    return torch.where(vanishes, 0, slope * grad / norm.pow(p - 1))


def euclidean_dist(x1: Tensor, x2: Tensor) -> Tensor:
    """Distances through one matrix product: |x|^2 - 2 x y + |y|^2, which is fast and cancels where points are near."""
    first, second = (x.pow(2).sum(-1, keepdim=True) for x in (x1, x2))
    left = torch.cat([x1 * -2, first, torch.ones_like(first)], -1)
    right = torch.cat([x2, torch.ones_like(second), second], -1)
    return left.matmul(right.mT).clamp_min(0).sqrt()


def _batch(x1: Tensor, x2: Tensor) -> torch.Size:
    """The batch dims, which may be symbolic, that [..., P, M] and [..., R, M] broadcast to."""
    batch: torch.Size = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])  # type: ignore[no-untyped-call]
    return batch


def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """x1 [..., P, M], x2 [..., R, M]: distances [..., P, R]."""
    if x1.shape[-1] and p == 2 and x1.shape[-2] and x2.shape[-2]:
        large = compute_mode in _PRODUCT_IF_LARGE and (x1.shape[-2] > 25 or x2.shape[-2] > 25)
        if large or compute_mode == _ALWAYS_PRODUCT:
            return euclidean_dist(x1, x2)
    batch = _batch(x1, x2)
    shape = (*batch, x1.shape[-2], x2.shape[-2])
    if not x1.shape[-1] or not math.prod(shape):
        return x1.new_zeros(shape)
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """Gradient by x1, of the batch dims that x1 and x2 broadcast to."""
    batch = _batch(x1, x2)
    if not math.prod((*batch, *x1.shape[-2:])) or not x2.shape[-2]:
        return torch.zeros_like(x1)
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return _norm_gradient(difference, cdist.unsqueeze(-1), grad.unsqueeze(-1), p).sum(-2)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows i and j of every pair i < j, in row-major order."""
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    return first, second


def pdist_forward(x: Tensor, p: float = 2) -> Tensor:
    """x [N, M]: distances of its N (N - 1) / 2 pairs of rows."""
    count = x.shape[0] * (x.shape[0] - 1) // 2
    if count <= 0 or not x.shape[1]:
        return x.new_zeros((max(count, 0),))
    first, second = _pairs(x)
    return _norm(x[first] - x[second], p)


def pdist_backward(grad: Tensor, x: Tensor, p: float, pdist: Tensor) -> Tensor:
    if x.shape[0] < 2 or not x.shape[1]:
        return torch.zeros_like(x)
    first, second = _pairs(x)
    slope = _norm_gradient(x[first] - x[second], pdist.unsqueeze(-1), grad.unsqueeze(-1), p)
    return torch.zeros_like(x).index_add(0, first, slope).index_add(0, second, -slope)
