"""neuron-dynamo check, and neuron_dynamo.check: every finding with its code, op, line and remedy, and the exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import neuron_dynamo
from neuron_dynamo.cli.main import main
from neuron_dynamo.errors import FallbackWarning, OptionError

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        return torch.relu(x)

def refused():
    return Net(), (torch.randn(2, 4),)

def good():
    with torch.no_grad():
        return torch.nn.Linear(4, 4).requires_grad_(False), (torch.randn(2, 4),)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / "checked.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "checked", raising=False)


@pytest.fixture
def relu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No op that lowering emits is refused, so that one is made up: a maximum."""
    from neuron_dynamo.preflight import rule

    def refuse(operation, target):
        yield rule.Fault("NCC_EVRF001", f"target {target.name} has no maximum", "use other models")

    monkeypatch.setitem(rule._RULES, "stablehlo.maximum", [refuse])


def test_findings_of_forward_and_backward(models: None, relu_is_refused: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "checked:refused", "--target", "trn2", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["target"], data["refused"]) == ("trn2", True)
    assert [graph["kind"] for graph in data["graphs"]] == ["forward", "backward"]
    (finding,) = data["graphs"][0]["findings"]
    assert finding["code"] == "NCC_EVRF001" and finding["op"] == "stablehlo.maximum(f32[2,4], f32[2,4])" and finding["refused"]
    assert finding["fx_op"] == "aten.relu.default" and finding["source"]["code"] == "return torch.relu(x)"
    assert (Path(finding["source"]["file"]).name, finding["source"]["line"]) == ("checked.py", 11)
    assert (finding["what"], finding["remedy"]) == ("target trn2 has no maximum", "use other models")
    assert main(["check", "checked:refused", "--target", "trn2"]) == 1
    shown = capsys.readouterr().out
    texts = ("NCC_EVRF001", "target trn2 has no maximum", "from aten.relu.default", "checked.py:11", "-> use other models", "1 refused, 0")
    for text in texts:
        assert text in shown


def test_nothing_found(models: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "checked:good", "--target", "trn1"]) == 0
    assert "1 graph for trn1: nothing found. Only its compiler can tell" in capsys.readouterr().out


def test_the_host_target(models: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "checked:good"]) == 2
    assert capsys.readouterr().err.startswith("ND001: target 'host' refuses nothing")
    with pytest.raises(OptionError):
        neuron_dynamo.check(torch.sin, torch.randn(2))


def test_as_a_call(relu_is_refused: None) -> None:
    report = neuron_dynamo.check(torch.relu, torch.randn(4), options={"target": "inf2"})
    assert report.refused and [finding.code for finding in report.findings] == ["NCC_EVRF001"]
    assert neuron_dynamo.check(torch.neg, torch.randn(4), options={"target": "inf2"}).findings == ()


def test_lost_digits(models: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from neuron_dynamo.preflight import rule

    def warn(operation, target):
        yield rule.Fault("", "it is inexact", "live with it", refused=False)

    monkeypatch.setitem(rule._RULES, "stablehlo.dot_general", [warn])
    assert main(["check", "checked:good", "--target", "trn2"]) == 0
    assert "0 refused, 1 to know of" in capsys.readouterr().out
    assert main(["check", "checked:good", "--target", "trn2", "--strict"]) == 1


def test_ops_on_the_host_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(FallbackWarning, match="eig"):
        report = neuron_dynamo.check(lambda x: torch.linalg.eigvals(x).abs() + 1, torch.randn(3, 3), options={"target": "trn2"})
    assert any("eig" in op.name for graph in report.graphs for op in graph.host_ops)
