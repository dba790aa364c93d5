"""Pairwise distances and their gradients against eager, with coinciding points."""

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.lowering.opcheck import check, check_text


def _points() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(4, 5, generator=generator)
    return first, torch.cat([torch.randn(3, 5, generator=generator), first[:1]])


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_gradients(p: float) -> None:
    def gradients(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = first.detach().requires_grad_(), second.detach().requires_grad_()
        return torch.autograd.grad(torch.cdist(first, second, p).sum() + torch.pdist(second, p).square().sum(), (first, second))

    check(gradients, *_points())


def test_large_distances_go_through_a_product_as_in_eager() -> None:
    generator = torch.Generator().manual_seed(0)
    text = check_text(torch.cdist, torch.randn(30, 5, generator=generator) + 3, torch.randn(40, 5, generator=generator))
    assert "dot_general" in text
    assert "dot_general" not in check_text(torch.cdist, *_points())


def test_symbolic_sizes_stay_symbolic() -> None:
    counter = CompileCounterWithBackend("neuron")

    def distances(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.cdist(first, second).sin()

    for batch, rows, others, dims in ((2, 3, 4, 5), (3, 5, 6, 7), (4, 3, 2, 9)):
        first, second = torch.randn(batch, rows, dims, requires_grad=True), torch.randn(batch, others, dims, requires_grad=True)
        results = []
        for call in (torch.compile(distances, backend=counter, dynamic=True, fullgraph=True), distances):
            made = call(first, second)
            results.append((made, *torch.autograd.grad(made.sum(), (first, second))))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1
