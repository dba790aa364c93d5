"""inspect: runs nothing, takes real and fake tensors, and says what it cannot see."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

import neuron_dynamo
from neuron_dynamo.errors import InspectError


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))


def test_reports_every_graph_and_runs_none() -> None:
    model = _model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    report = neuron_dynamo.inspect(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"]
    for graph in report.graphs:
        assert (
            graph.stablehlo.startswith("module {") and graph.hlo.startswith("HloModule") and graph.cache == "miss" and len(graph.key) == 64
        )
        assert graph.native > 0 and {op.placement for op in graph.ops} <= {"native", "runtime"}
    torch.testing.assert_close(dict(model.state_dict()), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert neuron_dynamo.reports() == []


@pytest.mark.parametrize("rng", ["graph", "eager"])
def test_fake_tensors(rng: str) -> None:
    with FakeTensorMode():
        model, x = _model(), torch.randn(3, 4)
    assert len(neuron_dynamo.inspect(model, x, options={"rng": rng}).graphs) == 2


def test_cache_is_what_a_compile_left() -> None:
    model, x = torch.nn.Linear(4, 4).requires_grad_(False), torch.randn(2, 4)
    assert [g.cache for g in neuron_dynamo.inspect(model, x).graphs] == ["miss"]
    torch.compile(model, backend="neuron")(x)
    assert [g.cache for g in neuron_dynamo.inspect(model, x).graphs] == ["memory"]
    (graph,) = neuron_dynamo.reports()
    assert (graph.kind, graph.cache) == ("inference", "miss") and graph.timings["compile"] > 0


def test_source_lines_and_modules() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(self.inner(x)).real

    with pytest.warns(neuron_dynamo.errors.FallbackWarning, match=r"ND110(.*\n)*.*linalg_eig"):
        (graph,) = neuron_dynamo.inspect(Net().requires_grad_(False), torch.randn(4, 4)).graphs
    host = [op for op in graph.ops if op.placement == "host" and "linalg_eig" in op.name]
    assert host and host[0].source is not None and host[0].source.file == __file__ and "eigvals" in host[0].source.code


def test_a_model_that_reads_its_data_is_an_error() -> None:
    with pytest.raises(InspectError, match="ND050"):
        neuron_dynamo.inspect(lambda x: x * x.sum().item(), torch.ones(3))


def test_dump_dir_has_every_stage_and_stays_inside(tmp_path: Path) -> None:
    options = {"dump_dir": str(tmp_path / "dump"), "model_name": "../a b"}
    torch.compile(torch.nn.Linear(4, 4).requires_grad_(False), backend="neuron", options=options)(torch.randn(2, 4))
    (directory,) = (tmp_path / "dump").iterdir()
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["1_aot.fx", "2_passes.fx", "3_program_0.stablehlo.mlir", "4_program_0.hlo.txt", "ops.json", "report.json"]
    assert "stablehlo.dot_general" in (directory / "3_program_0.stablehlo.mlir").read_text()


def test_dump_dir_that_is_a_file_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(neuron_dynamo.errors.DumpWarning, match="ND131"):
        torch.compile(lambda x: x + 1, backend="neuron", options={"dump_dir": str(tmp_path / "file")})(torch.ones(2))
