"""Activations and their gradients against eager PyTorch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check, check_text

X = torch.cat([torch.linspace(-12, 12, 97), torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 25.0, -60.0])])

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.5),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2),
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softplus": lambda x: F.softplus(x, 2, 10),
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.5, -3),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_value_and_gradient(name: str) -> None:
    function = ACTIVATIONS[name]

    def both(x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.detach().requires_grad_()
        y = function(x)
        return y, torch.autograd.grad(y, x, grad)[0]

    check(both, X, torch.linspace(-2, 2, X.numel()))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "elu", "softplus", "leaky_relu"])
def test_low_precision_rounds_once(name: str) -> None:
    # One unit in the last place; in the far tail erf and tanh are within 3e-7 of -1, which is all that is left of them.
    check(ACTIVATIONS[name], X.bfloat16(), rtol=2**-8, atol=1e-6)


def test_gated() -> None:
    check(lambda x: F.glu(x, 0), torch.randn(6, 3))
    check(F.prelu, torch.randn(2, 3, 4), torch.tensor([0.1, 0.2, 0.3]))


@pytest.mark.parametrize(("name", "limit"), [("gelu", 9), ("gelu_tanh", 14), ("silu", 2)])
def test_program_size(name: str, limit: int) -> None:
    text = check_text(ACTIVATIONS[name], torch.randn(4, 5))
    assert len(re.findall(r"= (?:\")?stablehlo\.", text)) <= limit
