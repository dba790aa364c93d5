"""Graphs whose sizes depend on data: right for every size, native around the op that makes them, and within it if it has a padded form."""

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import neuron_dynamo


def unique(x: torch.Tensor) -> torch.Tensor:
    return torch.unique(x.abs()) * 2


def nonzero(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * 2).nonzero() + 1, x.sin()


def mask(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].exp()


def number(x: torch.Tensor) -> float:
    return x.sum().item() + 1


def written(x: torch.Tensor) -> torch.Tensor:
    picked = torch.masked_select(x, x > 1)
    x.mul_(2)
    return picked + torch.masked_select(x, x > 3).sum()


def repeated(x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(x, x.abs().long()).cos()


def length(x: torch.Tensor) -> torch.Tensor:
    n = (x > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= 16)
    return torch.zeros(n) + x.sum()


def split(x: torch.Tensor) -> list[torch.Tensor]:
    return [part.exp() for part in torch.tensor_split(x, (x > 2).sum().reshape(1))]


@pytest.mark.parametrize("fn", [unique, nonzero, mask, number, written, repeated, length, split], ids=lambda fn: fn.__name__)
def test_sizes_made_by_data(fn: Callable[[torch.Tensor], object]) -> None:
    compiled = torch.compile(fn, backend="neuron", fullgraph=True)
    first = torch.tensor([1.0, 0.0, 3.0, -2.0, 5.0])
    for x in (first, first.neg(), torch.cat([first, first + 1]), torch.zeros(4)):
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(compiled(mine), fn(theirs))
        torch.testing.assert_close(mine, theirs)


def test_backward_through_a_mask() -> None:
    compiled = torch.compile(lambda x: (x[x > 0] ** 2).sum(), backend="neuron", fullgraph=True)
    for values in ([1.0, -2.0, 3.0], [-1.0, -2.0, 4.0]):
        x = torch.tensor(values, requires_grad=True)
        compiled(x).backward()
        torch.testing.assert_close(x.grad, torch.relu(x.detach()) * 2)


def test_the_op_is_reported_and_refused_where_fallback_is_an_error() -> None:
    before = len(neuron_dynamo.reports())
    torch.compile(repeated, backend="neuron", fullgraph=True)(torch.ones(3))
    host = [op for graph in neuron_dynamo.reports()[before:] for op in graph.ops if op.placement == "host"]
    assert [op.name for op in host] == ["aten.repeat_interleave.Tensor"] and host[0].source is not None
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match=r"ND010[\s\S]*depends on data[\s\S]*test_data_dependent"):
        torch.compile(repeated, backend="neuron", fullgraph=True, options={"fallback": "error"})(torch.ones(3))


def test_an_op_with_a_padded_form_is_no_fallback() -> None:
    compiled = torch.compile(unique, backend="neuron", fullgraph=True, options={"fallback": "error"})
    before = len(neuron_dynamo.reports())
    torch.testing.assert_close(compiled(torch.tensor([3.0, -1.0, 1.0])), torch.tensor([2.0, 6.0]))
    assert {op.placement for graph in neuron_dynamo.reports()[before:] for op in graph.ops} == {"native"}


def test_reading_a_number_is_no_fallback() -> None:
    compiled = torch.compile(number, backend="neuron", fullgraph=True, options={"fallback": "error"})
    assert compiled(torch.ones(3)) == 4.0
    assert {op.placement for graph in neuron_dynamo.reports() for op in graph.ops} == {"native", "runtime"}
