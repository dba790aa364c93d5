"""Host islands: merged, one program on either side, right through autograd and mutation, and told of in reports."""

from __future__ import annotations

import pytest
import torch

import neuron_dynamo
from neuron_dynamo.errors import FallbackWarning


@torch.library.custom_op("nd_partition::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """An op that no target has a lowering for."""
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: twice(grad))


@torch.library.custom_op("nd_partition::add_one", mutates_args=("x",))
def add_one(x: torch.Tensor) -> None:
    """A host op that writes into its argument."""
    x.add_(1)


@add_one.register_fake
def _(x: torch.Tensor) -> None:
    return None


pytestmark = pytest.mark.filterwarnings("ignore::neuron_dynamo.errors.FallbackWarning")


def graphs() -> list[neuron_dynamo.GraphReport]:
    return [g for g in neuron_dynamo.reports() if g.ops]


def test_independent_islands_are_one_cut() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = twice(x.sin()), twice(y.cos())
        return (a.exp() + b.exp()) * twice(x * y)

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(fn, backend="neuron", fullgraph=True)(x, y), fn(x, y))
    (graph,) = graphs()
    assert graph.host == 3
    assert len(graph.programs) == 2  # what feeds the three host ops, and what reads them


def test_a_chain_of_islands_costs_a_program_each_between() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = twice(x.sin())
        return x

    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(fn, backend="neuron", fullgraph=True)(x), fn(x))
    (graph,) = graphs()
    assert len(graph.programs) == 3
    assert len(set(graph.key.split(","))) == 1  # the same program: compiled once
    assert [p.cache for p in graph.programs] == ["miss", "memory", "memory"]


def test_native_work_beside_an_island_does_not_wait_for_it() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return twice(x), x.sin().exp()

    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(fn, backend="neuron", fullgraph=True)(x), fn(x))
    (graph,) = graphs()
    assert len(graph.programs) == 1


def test_training_through_islands() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (twice(torch.tanh(x @ w)) @ w).relu().sum()

    given = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    compiled = torch.compile(fn, backend="neuron", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(*given), given), torch.autograd.grad(fn(*given), given))
    forward, backward = graphs()
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert forward.host == 1
    assert backward.host == 1


def test_mutation_on_both_sides_of_the_border() -> None:
    def fn(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state.mul_(2)
        add_one(state)
        before = state.sin()
        add_one(state)
        state.add_(x)
        return before + twice(state)

    compiled = torch.compile(fn, backend="neuron", fullgraph=True)
    x, mine, theirs = torch.randn(4), torch.zeros(4), torch.zeros(4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, mine), fn(x, theirs))
        torch.testing.assert_close(mine, theirs)


def test_reports_and_the_warning_name_op_reason_and_line() -> None:
    with pytest.warns(FallbackWarning, match=r"nd_partition\.twice[\s\S]*test_partition\.py"):
        torch.compile(lambda x: twice(x.sin()), backend="neuron", fullgraph=True)(torch.randn(2, 7))
    (op,) = [op for graph in graphs() for op in graph.ops if op.placement == "host"]
    assert op.name == "nd_partition.twice.default"
    assert op.reason
    assert op.source is not None and op.source.file.endswith("test_partition.py")


def test_calls_after_the_first_compile_nothing() -> None:
    compiled = torch.compile(lambda x: twice(x.sin()).cos(), backend="neuron", fullgraph=True)
    x = torch.randn(6)
    for _ in range(100):
        compiled(x)
    assert len(graphs()) == 1
