"""Field cases of the kind DYNAMIC: symbolic sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import neuron_dynamo
from tests.field.check import compiled, host_ops


def test_sizes_as_results_and_in_views() -> None:
    """B149"""

    def fn(x: Tensor) -> object:
        n = x.size(0)
        return n, n * 2 + 1, x.view(n, -1), x.new_zeros(n), x.reshape(-1).shape[0], x.sum() / n, float(n) > 3.5

    counter = CompileCounterWithBackend("neuron")
    f = torch.compile(fn, backend=counter, fullgraph=True, dynamic=True)
    for n in (4, 5, 9, 5):
        x = torch.randn(n, 2, 3)
        torch.testing.assert_close(f(x), fn(x))
    assert counter.frame_count == 1


@pytest.mark.parametrize("training", [False, True])
def test_marked_batch(training: bool) -> None:
    """B151"""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    reference = copy.deepcopy(model)
    counter = CompileCounterWithBackend("neuron")
    f = torch.compile(model, backend=counter, fullgraph=True)
    for n in (3, 6, 2, 6):
        x = torch.randn(n, 3, 4)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.set_grad_enabled(training):
            ours, theirs = f(x), reference(x)
        torch.testing.assert_close(ours, theirs)
        if training:
            ours.square().sum().backward()
            theirs.square().sum().backward()
    assert counter.frame_count == 1
    if training:
        torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])


def test_programs_are_compiled_once_a_size() -> None:
    """B153: four batch sizes, three epochs."""
    counter = CompileCounterWithBackend("neuron")
    f = torch.compile(lambda x: (x @ x.t()).softmax(-1).sum(0), backend=counter, dynamic=True)
    for _epoch in range(3):
        for n in (2, 4, 6, 8):
            f(torch.randn(n, 3))
    assert counter.frame_count == 1
    assert sum(graph.cache == "miss" for graph in neuron_dynamo.reports()) == 4


@pytest.mark.parametrize("strides", [(288, 9, 1), (1, 40, 5), (400, 10, 1), (0, 9, 1)])
def test_reshape_of_strided_tensors(strides: tuple[int, int, int]) -> None:
    """B155: and an expanded one."""
    f = compiled(lambda x: (x.transpose(1, 2).reshape(x.shape[0], -1) + 1, x.flatten() * 2, x.permute(2, 0, 1).contiguous()), dynamic=True)
    for batch in (4, 3):
        base = torch.randn(2000)
        x = base.as_strided((batch, 8, 5) if strides[0] == 1 else (batch, 8, 9), strides)
        expected = (x.transpose(1, 2).reshape(batch, -1) + 1, x.flatten() * 2, x.permute(2, 0, 1).contiguous())
        torch.testing.assert_close(f(x), expected)
    assert not host_ops()
