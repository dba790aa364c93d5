"""Field cases of the kind RNG: draws that are burnt into a program, or that make it uncacheable."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neuron_dynamo
from tests.field.check import compiled


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_each_call_draws_anew_and_the_seed_repeats(mode: str) -> None:
    """B143"""
    f = compiled(lambda x: (F.dropout(x, 0.5), torch.rand(8), torch.randn_like(x)), rng=mode)
    x = torch.ones(64)
    torch.manual_seed(1)
    first, second = f(x), f(x)
    assert all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    torch.manual_seed(1)
    torch.testing.assert_close(f(x), first, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_a_dropout_model_is_cacheable_and_still_random(mode: str) -> None:
    """B143, B145: compiled a second time it comes from the cache, and draws what the seed says, not what was drawn before."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    x = torch.randn(4, 8)
    results = []
    for _ in range(2):
        torch._dynamo.reset()
        f = torch.compile(model, backend="neuron", fullgraph=True, options={"rng": mode})
        torch.manual_seed(5)
        results.append([f(x).detach(), f(x).detach()])
    assert not torch.equal(*results[0])
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    cold, warm = [graph for graph in neuron_dynamo.reports() if graph.kind == "forward"]
    assert cold.cache == "miss" and warm.cache in ("memory", "disk")


def test_the_mask_of_the_forward_is_that_of_the_backward() -> None:
    """B143"""
    x = torch.ones(256, requires_grad=True)
    out = compiled(lambda x: F.dropout(x, 0.25))(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_python_and_numpy_numbers() -> None:
    """B147: seeded inside or outside, first call and second."""

    def inside(x: Tensor) -> Tensor:
        random.seed(7)
        return x + random.random() + random.randint(0, 100)

    x = torch.zeros(3)
    f = compiled(inside, fullgraph=False)
    assert torch.equal(f(x), inside(x)) and torch.equal(f(x), inside(x))
    torch._dynamo.reset()

    def outside(x: Tensor) -> Tensor:
        return x * random.uniform(1, 2) + float(np.random.rand())

    g = compiled(outside, fullgraph=False)
    for _ in range(2):
        results = []
        for fn in (g, outside):
            random.seed(3)
            np.random.seed(4)
            results.append(fn(torch.ones(3)))
        torch.testing.assert_close(*results)
    assert not torch.equal(g(torch.ones(3)), g(torch.ones(3)))
