"""Ops whose definition by PyTorch, before autograd, gives other numbers than eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neuron_dynamo.shadowed import _KEYS, _OPS, set_aside

INF, NAN = float("inf"), float("nan")
LABELS = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [0, 1, 2, 3]])
CLASSES = torch.tensor([1, 0, 3])


def agree(function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> None:
    """`function` and its gradients, compiled as eager."""
    results = []
    for call in (function, torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)):
        given = x.clone().requires_grad_()
        made = call(given)
        results.append((made, *torch.autograd.grad(made, given, [torch.full_like(y, 1 + n) for n, y in enumerate(made)])))
    torch.testing.assert_close(results[1], results[0], equal_nan=True)


def losses(x: Tensor) -> list[Tensor]:
    labelled = [F.multilabel_margin_loss(x, LABELS, reduction=how) for how in ("none", "mean", "sum")]
    return [*labelled, *(F.multi_margin_loss(x, CLASSES, reduction=how) for how in ("none", "mean", "sum"))]


@pytest.mark.parametrize("odd", [0.5, INF, -INF, NAN])
def test_margin_losses(odd: float) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    x[2, 1] = odd
    agree(losses, x)


def test_margin_losses_of_one_row_and_of_powers() -> None:
    x = torch.randn(4, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0])
    agree(lambda x: [F.multilabel_margin_loss(x, LABELS[0]), F.multi_margin_loss(x, CLASSES[0], 2, 0.7, weights, reduction="none")], x)


RESIZED: dict[str, dict[str, Any]] = {
    "linear": {"mode": "linear"},
    "bilinear": {"mode": "bilinear"},
    "bilinear, antialiased": {"mode": "bilinear", "antialias": True},
    "bicubic": {"mode": "bicubic"},
    "trilinear": {"mode": "trilinear"},
}


@pytest.mark.parametrize("name", RESIZED)
def test_an_infinity_beside_finite_numbers(name: str) -> None:
    given = RESIZED[name]
    spatial = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}[given["mode"]]
    x = torch.arange(4.0**spatial).reshape(1, 1, *(4,) * spatial).repeat(1, 2, *(1,) * spatial)
    x[(0, 1, *(1,) * spatial)] = INF
    agree(lambda x: [F.interpolate(x, scale_factor=factor, **given) for factor in (2.0, 1.5, 0.5)], x)


def test_others_find_pytorchs_definitions_as_they_were() -> None:
    before = {(op, key): op.py_kernels.get(key) for op in _OPS for key in _KEYS}
    assert any(before.values())
    with contextlib.suppress(ValueError), set_aside():
        assert not any(op.py_kernels.get(key) for op in _OPS for key in _KEYS)
        raise ValueError
    assert {(op, key): op.py_kernels.get(key) for op in _OPS for key in _KEYS} == before
