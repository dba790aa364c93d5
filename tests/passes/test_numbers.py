"""Gradients of ops that took a complex Python number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

X = torch.complex(torch.linspace(-2, 3, 24), torch.linspace(4, -1, 24)).reshape(4, 6)

CASES: dict[str, Callable[..., Any]] = {
    "mul": lambda x: x * (2 - 1j),
    "mul first": lambda x: 1j * x.angle(),
    "div": lambda x: x / (1 + 2j),
    "divided": lambda x: 2j / x,
    "exp": lambda x: torch.exp(1j * x),
    "add and sub": lambda x: torch.sub(x + 1j, x * x, alpha=2j),
    "in a branch": lambda x: torch.cond(x.real.sum() > 0, lambda x: x * 1j, lambda x: x / 2j, (x,)),
}


@pytest.mark.parametrize("case", CASES)
def test_gradient(case: str) -> None:
    options = {"fallback": "error"}
    x = X.clone().requires_grad_()
    expected = torch.view_as_real(CASES[case](x))
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    y = torch.compile(lambda x: torch.view_as_real(CASES[case](x)), backend="neuron", fullgraph=True, options=options)(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], gradient)
