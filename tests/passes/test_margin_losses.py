"""Gradients of the margin losses against eager."""

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradients(reduction: str) -> None:
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0])

    def gradients(x: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.detach().requires_grad_()
        losses = [F.multi_margin_loss(x, target, p, 0.7, weights, reduction=reduction) for p in (1, 2)]
        losses.append(F.multilabel_margin_loss(x, labels, reduction=reduction))
        return *losses, *(torch.autograd.grad(loss, x, loss.detach().cos(), retain_graph=True)[0] for loss in losses)

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    check(gradients, x, torch.tensor([1, 0, 3]), torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [0, 1, 2, 3]]))
