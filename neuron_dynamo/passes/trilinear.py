"""Decomposition of aten::_trilinear, the contraction under nn.Bilinear and its gradients, after aten/src/ATen/native/Linear.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def trilinear_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {aten._trilinear.default: trilinear}


def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors, each broadcast along its `expand` dims, summed over `sumdim`: as matrix products."""
    rank = i1.ndim + len(expand1)
    summed = {d % rank for d in sumdim}

    def labels(expand: Sequence[int]) -> list[int]:
        gone = {d % rank for d in expand}
        return [d for d in range(rank) if d not in gone]

    kept = [d for d in range(rank) if d not in summed]
    return torch.einsum(i1, labels(expand1), i2, labels(expand2), i3, labels(expand3), kept)
