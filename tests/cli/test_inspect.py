"""neuron-dynamo inspect: what it passes on, and that it prints what the report holds."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from neuron_dynamo.cli.main import build_parser, main
from neuron_dynamo.errors import SourceLine
from neuron_dynamo.options import Options
from neuron_dynamo.report import GraphReport, OpReport

LINE = SourceLine("model.py", 12, "layers.0[x]", "return x.sort()")
GRAPH = GraphReport(
    "graph_0_inference",
    "inference",
    "def forward(x): ...",
    [
        OpReport("aten.add.Tensor", "native"),
        OpReport("aten.add.Tensor", "native"),
        OpReport("aten.sort.default", "host", "no [rule]", LINE),
    ],
    timings={"lower": 0.25, "compile": 1.0},
)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls that reach `inspection.inspect`, which answers with GRAPH; the current folder holds `inspected:make`."""
    made: list[tuple[Any, ...]] = []

    def inspect(model: Any, *args: Any, options: Any = None, **kwargs: Any) -> Any:
        made.append((model, args, options, kwargs))
        return SimpleNamespace(graphs=[GRAPH])

    library = ModuleType("neuron_dynamo.inspection")
    library.inspect = inspect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "neuron_dynamo.inspection", library)
    (tmp_path / "inspected.py").write_text("def make():\n    return sorted, ([2, 1],), {'reverse': True}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "inspected", raising=False)
    return made


def test_every_option_is_a_flag() -> None:
    args = build_parser().parse_args(["inspect", "m:f"])
    assert {field.name for field in dataclasses.fields(Options)} <= vars(args).keys()


def test_model_and_options_reach_the_library(calls: list[tuple[Any, ...]]) -> None:
    assert main(["inspect", "inspected:make", "--target", "trn2", "--lnc", "1", "--compiler-args=-O1 --x"]) == 0
    assert calls == [(sorted, ([2, 1],), {"target": "trn2", "lnc": "1", "compiler_args": "-O1 --x"}, {"reverse": True})]


def test_tables(calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "inspected:make"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["graph_0_inference", "inference", "2", "1", "memory", "1.250"] in lines
    host = ["aten.sort.default", "1", "host", "no", "[rule]", "model.py:12", "in", "module", "layers.0[x]"]
    assert lines.index(host) < lines.index(["aten.add.Tensor", "2", "native"])
    assert ["lower", "0.250", "s,", "compile", "1.000", "s"] in lines


def test_json(calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "inspected:make", "--json"]) == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    assert graph["fx"] == GRAPH.fx
    assert graph["timings"] == GRAPH.timings
    source = {"file": "model.py", "line": 12, "module": "layers.0[x]", "code": "return x.sort()"}
    assert graph["ops"][2] == {"name": "aten.sort.default", "placement": "host", "reason": "no [rule]", "source": source}
    assert graph.keys() == {"name", "kind", "key", "cache", "timings", "ops", "fusions", "fx", "stablehlo", "hlo"}


def test_show_prints_the_text_alone(calls: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "inspected:make", "--show", "fx"]) == 0
    assert capsys.readouterr().out == "# graph_0_inference (inference)\ndef forward(x): ...\n\n"
