"""Field cases of the kind COMPILER: what a Neuron compiler refused to users does not reach it, and the numbers are right all the same.

No compiler is here: `emulate="always"` runs each program for trn2 on the host, after preflight has let it pass.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import neuron_dynamo
from tests.field.check import host_ops

pytestmark = pytest.mark.filterwarnings("ignore::neuron_dynamo.errors.NoDeviceWarning", "ignore::neuron_dynamo.errors.PrecisionWarning")


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def for_trn2(fn: object, **given: object) -> object:
    return torch.compile(fn, backend="neuron", options={"target": "trn2", "emulate": "always"}, **given)  # type: ignore[call-overload]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 6, mode="mean")
        self.scores = nn.Parameter(torch.zeros(5, 6))

    def forward(self, tokens: Tensor, offsets: Tensor, labels: Tensor) -> Tensor:
        pooled = self.bag(tokens, offsets)
        sums = torch.zeros(3, 6).index_add(0, labels, pooled * self.scores[:4].exp())
        return sums.square().sum() + sums.scatter_add(1, tokens[:6].remainder(6).expand(3, 6), sums).abs().sum()


def test_scatter_in_the_loss_and_its_backward() -> None:
    """B119"""
    model = Bag()
    reference = copy.deepcopy(model)
    given = torch.randint(0, 20, (12,)), torch.tensor([0, 3, 3, 7]), torch.tensor([0, 2, 0, 1])
    for_trn2(model, fullgraph=True)(*given).backward()  # type: ignore[operator]
    reference(*given).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert host_ops() == []


@pytest.mark.parametrize("select", [lambda x: torch.masked_select(x, x > 0) * 2, lambda x: x.nonzero().sum(0)])
def test_sizes_that_depend_on_data(select: object) -> None:
    """B121"""
    x = torch.randn(6, 5)
    torch.testing.assert_close(for_trn2(lambda x: select(x.sin()) + 1, fullgraph=True)(x), select(x.sin()) + 1)  # type: ignore[operator]
    assert host_ops() == []
    programs = [program.stablehlo for graph in neuron_dynamo.reports() for program in graph.programs]
    assert programs and not any("set_dimension_size" in text or "tensor<?" in text for text in programs)


class Fashion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2)
        self.norm, self.out = nn.BatchNorm2d(4), nn.Linear(8 * 6 * 6, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return torch.nn.functional.cross_entropy(self.out(torch.relu(self.second(x)).flatten(1)), labels)


@pytest.mark.parametrize("batch", [25, 32, 256])
def test_a_small_cnn_of_any_batch(batch: int) -> None:
    """B123"""
    report = neuron_dynamo.check(
        Fashion(), torch.randn(batch, 1, 28, 28), torch.zeros(batch, dtype=torch.int64), options={"target": "trn2"}
    )
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"]
    assert not report.refused and not any(graph.host_ops for graph in report.graphs), report
