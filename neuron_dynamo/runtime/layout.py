"""Copies into a given memory layout, run on the host."""

from __future__ import annotations

import torch


def copy_to_strides(x: torch.Tensor, strides: list[int], offset: int = 0) -> torch.Tensor:
    """x's values in a fresh tensor with these strides and storage offset (elements); overlapping strides (0) are allowed where
    values agree."""
    size = [1 if stride == 0 else n for n, stride in zip(x.shape, strides, strict=True)]
    reach = 1 + sum((n - 1) * stride for n, stride in zip(size, strides, strict=True)) if x.numel() else 0
    result = torch.empty(offset + reach, dtype=x.dtype).as_strided(size, strides, offset)
    result.copy_(x[tuple(slice(0, n) for n in size)])
    return result.expand(x.shape)


def with_strides(x: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """x itself if it has these strides (elements; of dims longer than 1), else a copy that has them."""
    same = all(a == b or n <= 1 for a, b, n in zip(x.stride(), strides, x.shape, strict=True))
    return x if same else copy_to_strides(x, strides)
