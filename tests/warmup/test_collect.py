"""A run that collects: right values without a compile, and a cache that the real run then finds complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import neuron_dynamo
from neuron_dynamo import report
from neuron_dynamo.cache import Cache
from neuron_dynamo.errors import CacheMissError
from neuron_dynamo.options import Options
from neuron_dynamo.recording import Spool, read_spool, record_to
from neuron_dynamo.report import GraphReport
from neuron_dynamo.warmup.planning import make_plan
from neuron_dynamo.warmup.worker import Task, compile_task
from tests.aot_toy import new_process


def compile_all(folder: Path) -> list[str]:
    """Compile the programs of a spool in this process; what was done with each."""
    done = [
        compile_task(Task(graph.name, wanted.key, graph.options, wanted.program()))
        for graph in read_spool(folder)
        for wanted in graph.programs
    ]
    assert [result.message for result in done if result.message] == []
    return [result.status for result in done]


def collected(folder: Path, job: Callable[[], Any]) -> Any:
    with record_to(Spool(folder, "job")):
        return job()


def in_production(job: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`job` as a new process with cache="require" runs it."""
    report.clear()
    monkeypatch.setenv("NEURON_DYNAMO_CACHE", "require")
    with new_process():
        return job()


def training() -> list[torch.Tensor]:
    """Forward, backward, a compiled optimizer step, and inference after it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 6)
    compiled = torch.compile(model, backend="neuron")
    loss = compiled(x).square().sum()
    loss.backward()
    torch.compile(optimizer.step, backend="neuron")()
    model.eval()
    with torch.no_grad():
        return [loss.detach(), compiled(x), *(p.detach().clone() for p in model.parameters()), *model.buffers()]


def eager(job: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", lambda function=None, **given: function or (lambda function: function))
        return job()


def test_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = eager(training, monkeypatch)
    torch.testing.assert_close(collected(tmp_path / "spool", training), expected)
    graphs = read_spool(tmp_path / "spool")
    assert [graph.kind for graph in graphs] == ["forward", "backward", "inference", "inference"]
    assert all(graph.label == "job" and graph.programs and graph.native for graph in graphs)
    assert {Cache(graph.options).level(wanted.key) for graph in graphs for wanted in graph.programs} == {"miss"}
    assert compile_all(tmp_path / "spool") == ["compiled"] * 4
    assert compile_all(tmp_path / "spool") == ["hit"] * 4
    assert [item.level != "miss" for item in make_plan(graphs).items] == [True] * 4

    torch.testing.assert_close(in_production(training, monkeypatch), expected)
    timings = [graph.timings for graph in neuron_dynamo.reports()]
    assert len(timings) == 4 and all("compile" not in stages and "lower" not in stages for stages in timings)
    # AOTAutogradCache's entries were written while collecting: no trace either. The step of an optimizer has none.
    assert counters["aot_autograd"]["autograd_cache_hit"] >= 2
    assert counters["aot_autograd"]["autograd_cache_miss"] == 0


def test_data_dependent_python_mutation_and_symbolic_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job() -> list[Any]:
        @torch.compile(backend="neuron", dynamic=True)
        def scaled(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            total.add_(x.sum())
            return torch.where(x > 0, x, x * 0.5)

        @torch.compile(backend="neuron")
        def chosen(x: torch.Tensor) -> torch.Tensor:
            return x[x > 0].cumsum(0)

        total, found = torch.zeros(()), []
        for size in (3, 5):
            y = scaled(torch.arange(size) - 1.5, total)
            if total > 0:  # Python that reads what was computed: the path is the real one
                y = chosen(y)
            found.append(y)
        return [total, *found]

    expected = eager(job, monkeypatch)
    torch.testing.assert_close(collected(tmp_path / "spool", job), expected, rtol=0, atol=0)
    assert set(compile_all(tmp_path / "spool")) == {"compiled"}
    torch.testing.assert_close(in_production(job, monkeypatch), expected)
    assert [graph.timings for graph in neuron_dynamo.reports() if "load" in graph.timings]
    assert all("compile" not in graph.timings for graph in neuron_dynamo.reports())


def test_a_job_that_requires_or_only_reads_is_warmed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job() -> torch.Tensor:
        return torch.compile(torch.sin, backend="neuron", options={"cache": "require"})(torch.ones(3))

    collected(tmp_path / "spool", job)
    assert compile_all(tmp_path / "spool") == ["compiled"]
    torch.testing.assert_close(in_production(job, monkeypatch), torch.ones(3).sin())


def test_require_names_the_graph_and_the_part_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(precision: str = "warn") -> torch.Tensor:
        options = {"precision": precision, "model_name": "sine"}
        return torch.compile(torch.sin, backend="neuron", options=options)(torch.ones(3))

    collected(tmp_path / "spool", job)
    compile_all(tmp_path / "spool")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as failure:
        in_production(lambda: job("error"), monkeypatch)
    error = failure.value.inner_exception
    assert isinstance(error, CacheMissError)
    assert "graph sine_" in str(error) and "precision is 'error', stored 'warn'" in str(error)


def test_a_worker_of_another_build_is_told_by_the_part(tmp_path: Path) -> None:
    collected(tmp_path / "spool", lambda: torch.compile(torch.sin, backend="neuron")(torch.ones(3)))
    ((wanted,),) = [graph.programs for graph in read_spool(tmp_path / "spool")]
    (graph,) = read_spool(tmp_path / "spool")
    parts = tuple((name, "2.12" if name == "torch" else value) for name, value in wanted.key.parts)
    done = compile_task(Task(graph.name, type(wanted.key)(parts), graph.options, wanted.program()))
    assert (done.status, done.transient) == ("failed", False)
    assert f"torch is '{torch.__version__}" in done.message and "wanted '2.12'" in done.message


def test_a_relative_cache_directory_is_that_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that changes its working directory before it compiles will look for its graphs there."""
    monkeypatch.chdir(tmp_path)
    spool = Spool(tmp_path / "spool", "job")
    given = Options.resolve({"cache_dir": "warm", "cache_layers": ["layer", "~/layer"]}, {})
    spool.add(GraphReport("g", "inference"), [], [], given)
    monkeypatch.chdir("/")
    (graph,) = read_spool(spool.folder)
    assert graph.options.cache_path == tmp_path / "warm"
    assert graph.options.cache_layers == (str(tmp_path / "layer"), "~/layer")
