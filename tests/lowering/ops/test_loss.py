"""Losses against eager PyTorch, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check, check_text

TARGET = torch.tensor([1, 0, -100, 4, 4])


def _with_gradient(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def both(x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        loss = function(x, *rest)
        return loss, torch.autograd.grad(loss, x, torch.full_like(loss, 1.5))[0]

    return both


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nll_loss(reduction: str, weighted: bool, dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 6).to(dtype), torch.rand(6).to(dtype) if weighted else None
    check(_with_gradient(lambda x, t, w: F.nll_loss(x, t, w, reduction=reduction)), x, TARGET, weight)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss_2d(reduction: str, weighted: bool) -> None:
    target = torch.randint(0, 4, (2, 3, 5))
    target[0, 1] = 2
    weight = torch.rand(4) if weighted else None
    check(_with_gradient(lambda x, t, w: F.nll_loss(x, t, w, ignore_index=2, reduction=reduction)), torch.randn(2, 4, 3, 5), target, weight)


def test_nll_loss_of_one_sample() -> None:
    check(_with_gradient(F.nll_loss), torch.randn(6), torch.tensor(3))


def test_every_target_ignored() -> None:
    check(lambda x, t: (F.nll_loss(x, t), F.nll_loss(x, t, reduction="sum")), torch.randn(2, 3), torch.tensor([-100, -100]))


def test_an_infinite_logit_elsewhere_does_not_matter() -> None:
    x = torch.tensor([[0.0, -torch.inf, 1.0], [torch.nan, 2.0, 3.0]])
    check(lambda x, t: F.nll_loss(x, t, reduction="none"), x, torch.tensor([2, 1]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing: float) -> None:
    check(_with_gradient(lambda x, t: F.cross_entropy(x, t, label_smoothing=smoothing)), torch.randn(5, 6), TARGET)


def test_backward_has_no_scatter() -> None:
    text = check_text(_with_gradient(F.cross_entropy), torch.randn(5, 6), TARGET)
    assert "stablehlo.scatter" not in text
    assert "stablehlo.gather" in text


PAIRED: dict[str, Callable[..., torch.Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.7),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=torch.full_like(y[0], 2.0)),
    "kl_div": lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "cosine": lambda x, y: 1 - F.cosine_similarity(x, y).mean(),
}


@pytest.mark.parametrize("name", PAIRED)
def test_paired_losses(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    check(_with_gradient(PAIRED[name]), *(torch.randn(4, 5, generator=generator) for _ in range(2)))
