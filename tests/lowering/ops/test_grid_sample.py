"""Grid sampling against eager PyTorch: every mode, padding and alignment, in and out of range, with gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check

EVERY_WAY = list(itertools.product(["zeros", "border", "reflection"], [True, False]))
WAYS = [("zeros", True), ("border", False), ("reflection", True)]
"""Those of the modes with many corners, whose programs are slow to compile; the sweep takes every way."""

CASES = [("bilinear", 2, True), ("nearest", 2, True), ("nearest", 3, True), ("bilinear", 3, False), ("bicubic", 2, False)]
LONG = [pytest.param(mode, dims, True, marks=pytest.mark.sweep) for mode, dims in (("bilinear", 3), ("bicubic", 2))]


@pytest.mark.parametrize(("mode", "dims", "every"), [*CASES, *LONG])
def test_grid_sample(mode: str, dims: int, every: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, *(5, 4, 6)[:dims], dtype=torch.float64)
    grid = torch.randn(2, *(3, 7, 2)[:dims], dims, dtype=torch.float64) * 1.5
    ways = EVERY_WAY if every else WAYS

    def step(x: torch.Tensor, grid: torch.Tensor) -> Any:
        x, grid = x.detach().requires_grad_(), grid.detach().requires_grad_()
        outs = [F.grid_sample(x, grid, mode, padding, align) for padding, align in ways]
        weights = [torch.arange(o.numel(), dtype=o.dtype).reshape(o.shape) / 16 for o in outs]
        return outs, [torch.autograd.grad(o, [x, grid], w) for o, w in zip(outs, weights, strict=True)]

    check(step, x, grid)


def test_affine_grid() -> None:
    theta = torch.tensor([[[0.7, 0.2, 0.1], [-0.3, 1.1, 0.0]]])

    def step(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, F.affine_grid(theta, (1, 2, 4, 5), align_corners=False), align_corners=False)

    check(step, torch.randn(1, 2, 5, 5), theta, rtol=1e-5, atol=1e-5)
