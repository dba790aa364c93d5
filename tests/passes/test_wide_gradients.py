"""Gradients of 16-bit ops whose formula cancels: nearest to float64's, and the op's own values as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Function = Callable[[torch.Tensor], torch.Tensor]


def _gradient(f: Function, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("f", [torch.special.i0e, torch.ops.aten.special_i0e], ids=["torch", "aten"])
def test_i0e(f: Function, dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 100).to(dtype)
    compiled = torch.compile(lambda x: f(x), backend="neuron", fullgraph=True)
    exact = _gradient(f, x.double())
    torch.testing.assert_close(compiled(x), f(x.double()).to(dtype), rtol=0, atol=0)
    assert torch.equal(_gradient(compiled, x), exact.to(dtype))


def test_in_a_branch_and_in_float32() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.special.i0e(x) * 2, lambda x: torch.special.i0e(x), (x,))

    for dtype in (torch.bfloat16, torch.float32):
        x = torch.linspace(-9, 9.5, 100).to(dtype)
        gradient = _gradient(torch.compile(f, backend="neuron", fullgraph=True), x)
        torch.testing.assert_close(gradient, _gradient(f, x.double()).to(dtype))
