"""Decompositions of fractional max pooling and its gradient, after aten/src/ATen/native/FractionalMaxPool{2,3}d.cpp. PyTorch has none of
its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def fractional_pooling_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten.fractional_max_pool2d.default: fractional_max_pool2d,
        aten.fractional_max_pool3d.default: fractional_max_pool3d,
        aten.fractional_max_pool2d_backward.default: fractional_max_pool_backward,
        aten.fractional_max_pool3d_backward.default: fractional_max_pool_backward,
    }


def fractional_max_pool2d(
    x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
) -> tuple[Tensor, Tensor]:
    """x [..., H, W]; random_samples [N, C, 2] holds W's before H's."""
    return _pool(x, kernel_size, output_size, random_samples.flip(-1))


def fractional_max_pool3d(
    x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
) -> tuple[Tensor, Tensor]:
    """x [..., T, H, W]; random_samples [N, C, 3] in that order."""
    return _pool(x, kernel_size, output_size, random_samples)


def _starts(samples: Tensor, size: int, kernel: int, count: int) -> Tensor:
    """First position of each of `count` windows: steps of a random phase between 0 and the last place."""
    last = torch.full((*samples.shape, 1), size - kernel, dtype=torch.int64, device=samples.device)
    if count == 1:
        return last
    alpha = (size - kernel) / (count - 1)
    phase = samples.unsqueeze(-1)
    steps = torch.arange(count - 1, device=samples.device).to(samples.dtype)
    begin = ((steps + phase) * alpha).to(torch.int64) - (phase * alpha).to(torch.int64)
    return torch.cat([begin, last], -1)


def _pool(x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], samples: Tensor) -> tuple[Tensor, Tensor]:
    """Windows are gathered one dim after another; their elements' places in x's plane are computed alongside."""
    spatial = len(kernel_size)
    lead, sizes = x.shape[:-spatial], x.shape[-spatial:]
    samples = samples[: math.prod(lead[:-1])].reshape(*lead, spatial)  # of more rows than the batch has, the first
    windows = x
    place = torch.zeros((*lead, *(1,) * spatial), dtype=torch.int64, device=x.device)
    for d in range(spatial):
        starts = _starts(samples[..., d], sizes[d], kernel_size[d], output_size[d])
        steps = starts.unsqueeze(-1) + torch.arange(kernel_size[d], device=x.device)
        steps = steps.reshape(*lead, *(1,) * d, output_size[d] * kernel_size[d], *(1,) * (spatial - 1 - d))
        dim = len(lead) + d
        shape = list(windows.shape)
        shape[dim] = steps.shape[dim]
        windows = windows.gather(dim, steps.expand(shape))
        place = place + steps * math.prod(sizes[d + 1 :])
    split = [n for pair in zip(output_size, kernel_size, strict=True) for n in pair]
    front = len(lead)
    order = [*range(front), *range(front, front + 2 * spatial, 2), *range(front + 1, front + 2 * spatial, 2)]

    def by_window(v: Tensor) -> Tensor:
        return v.reshape(*lead, *split).permute(order).reshape(*lead, *output_size, math.prod(kernel_size))

    values, best = by_window(windows).max(-1)
    return values, by_window(place.expand(windows.shape)).gather(-1, best.unsqueeze(-1)).squeeze(-1)


def fractional_max_pool_backward(
    grad: Tensor, x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], indices: Tensor
) -> Tensor:
    """Each window's gradient, added where its maximum was."""
    spatial = len(kernel_size)
    flat = x.new_zeros((*x.shape[:-spatial], math.prod(x.shape[-spatial:])))
    return flat.scatter_add(-1, indices.flatten(-spatial), grad.flatten(-spatial)).reshape(x.shape)
