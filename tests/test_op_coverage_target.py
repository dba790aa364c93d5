"""Verdicts of ./tools/op_coverage on targets that are not here."""

from __future__ import annotations

import pytest
import torch

from neuron_dynamo.lowering import registry
from neuron_dynamo.lowering.structured import custom_call
from tools._coverage.cases import Case
from tools._coverage.judge_target import judge_target


def test_verdicts() -> None:
    x = torch.tensor([1.0, 2.0, -3.0])
    assert judge_target(Case(torch.sort, (x,), {"dim": 0}), "trn2").letter == "N"
    assert judge_target(Case(lambda t: t.view(3), (x,), {}), "trn2").letter == "-"
    assert judge_target(Case(torch.equal, (x, x), {}), "trn2").letter == "B"
    assert judge_target(Case(torch.add, (x, torch.ones(2)), {}), "trn2").letter == "X"
    on_host = judge_target(Case(torch.igamma, (x, x), {}), "trn2")
    assert on_host.letter == "H" and "takes no loops" in on_host.ops[0]


@pytest.fixture
def _unheard_of_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load()
    entry = registry.Entry(lambda b, x: custom_call(b, "unheard_of", [x], x.shape, x.dtype), None)
    monkeypatch.setitem(registry._RULES, torch.ops.aten.cos.default, entry)


@pytest.mark.usefixtures("_unheard_of_cosine")
def test_refusals_are_found() -> None:
    found = judge_target(Case(torch.cos, (torch.ones(3),), {}), "trn2")
    assert found.letter == "R" and found.ops == ["NCC_EVRF015: custom call unheard_of is not among those published"]


@pytest.mark.usefixtures("_unheard_of_cosine")
def test_the_backward_graph_counts() -> None:
    x = torch.ones(3, requires_grad=True)
    assert judge_target(Case(torch.sin, (x.detach(),), {}), "trn2").letter == "N"
    assert judge_target(Case(torch.sin, (x,), {}, differentiate=True), "trn2").letter == "R"
