"""Reports of users whose warm-up failed or was no use (B031, B045, B047 in the list of field cases)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

import neuron_dynamo
from neuron_dynamo import report
from neuron_dynamo.cache import Cache
from neuron_dynamo.warmup import Limits, compile_plan
from neuron_dynamo.warmup.planning import make_plan
from tests.aot_toy import new_process
from tests.cache.samples import options
from tests.warmup.real_items import graphs

ROUNDS = int(os.environ.get("NEURON_DYNAMO_FAULT_ROUNDS", "2"))


def test_parallel_warm_up_of_many_graphs_again_and_again(tmp_path: Path) -> None:
    """B031: soft failures under load. Many graphs, two workers, an empty cache each round."""
    for number in range(ROUNDS):
        given = options(tmp_path / f"cache{number}")
        plan = make_plan(graphs(tmp_path / "spool", given, 40))
        assert len(plan.misses) == 40
        outcomes = compile_plan(plan, Limits(jobs=2))
        assert [(o.item.name, o.message) for o in outcomes if o.status != "compiled" or o.attempts != 1] == []
        again = make_plan(graphs(tmp_path / "spool", given, 40))
        assert not again.misses and all(item.level == "disk" for item in again.items)
        # What was compiled is remembered with its time, from which the next plan predicts.
        assert Cache(given).lookup(again.items[0].key).artifact.timings["compile"] > 0  # type: ignore[union-attr]


def test_thirty_buckets_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """B045: a server warms thirty shapes; Dynamo and AOTAutograd trace them once, cold and warm."""
    calls = [(batch, length) for batch in (2, 3, 4, 5, 6) for length in (4, 5, 6, 7, 8, 9)]

    def job() -> list[torch.Tensor]:
        function = torch.compile(lambda x: torch.softmax(x * 2, -1) + x.shape[0], backend="neuron", dynamic=True)
        return [function(torch.full(shape, 0.5)) for shape in calls]

    counters.clear()
    cold = job()
    assert counters["stats"]["unique_graphs"] == 1 and len({g.key for g in neuron_dynamo.reports() if g.key}) == 30
    report.clear()
    monkeypatch.setenv("NEURON_DYNAMO_CACHE", "require")
    with new_process():
        counters.clear()
        warm = job()
    torch.testing.assert_close(warm, cold, rtol=0, atol=0)
    torch.testing.assert_close(warm, [torch.softmax(torch.ones(shape), -1) + shape[0] for shape in calls])
    assert counters["stats"]["unique_graphs"] == 1
    reports = neuron_dynamo.reports()
    assert reports and all("compile" not in g.timings for g in reports)


def test_stages_of_a_start_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """B047: a warm start that is slow all the same: the report says in which stage."""

    def job() -> list[set[str]]:
        torch.compile(torch.cos, backend="neuron")(torch.ones(4))
        return [set(graph.timings) for graph in neuron_dynamo.reports() if graph.programs]

    (cold,) = job()
    assert cold >= {"passes", "lower", "compile", "load"}
    report.clear()
    monkeypatch.setenv("NEURON_DYNAMO_CACHE", "require")
    with new_process():
        (warm,) = job()
    assert "load" in warm and warm.isdisjoint({"passes", "lower", "compile"})
