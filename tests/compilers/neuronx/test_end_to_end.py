"""`options={"target": "trn2"}` on a machine with (the double of) the compiler and no device: compiled, cached, run on the host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import neuron_dynamo
from neuron_dynamo.cache import entries
from neuron_dynamo.cli.main import main
from neuron_dynamo.errors import CompilerError, NoDeviceWarning
from neuron_dynamo.options import Options


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.second(torch.nn.functional.gelu(self.first(x)))


def train(model: torch.nn.Module, step: object) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = step(torch.randn(4, 8)).square().mean()  # type: ignore[operator]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def twins() -> tuple[Net, Net]:
    one, two = Net(), Net()
    two.load_state_dict(one.state_dict())
    return one, two


def test_training(neuronx_cc: Path, runs) -> None:
    given = {"target": "trn2", "compiler": str(neuronx_cc), "fallback": "error"}
    eager, ours = twins()
    expected = train(eager, eager)
    with pytest.warns(NoDeviceWarning, match="ND141"):
        losses = train(ours, torch.compile(ours, backend="neuron", options=given))
    torch.testing.assert_close(losses, expected)
    assert ours.calls == 3
    assert [row["argv"][0] for row in runs()] == ["compile"] * 2  # forward and backward
    assert {graph.kind: graph.cache for graph in neuron_dynamo.reports()} == {"forward": "miss", "backward": "miss"}

    torch._dynamo.reset()
    _, again = twins()
    torch.compile(again, backend="neuron", options=given)(torch.randn(4, 8)).sum().backward()
    assert len(runs()) == 2, "the second time they come from the cache"


def test_stablehlo_as_its_input(neuronx_cc: Path, runs) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 2

    x = torch.randn(4)
    given = {"target": "trn1", "compiler": str(neuronx_cc), "neuronx_cc_input": "stablehlo"}
    with pytest.warns(NoDeviceWarning, match="compiled for trn1 run on the host"):
        result = torch.compile(model, backend="neuron", options=given)(x)
    torch.testing.assert_close(result, model(x))
    assert [Path(row["argv"][1]).name for row in runs()] == ["module.mlir"]


def test_what_the_compiler_refuses_names_the_users_line(neuronx_cc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "[ERROR] [NCC_EVRF001] Operator sine is not supported\n%sine.9 = f32[4]{0} sine(%p0)"
    monkeypatch.setenv("FAKE_NEURONX_CC_FAULT", f"ncc:{said}")

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    compiled = torch.compile(model, backend="neuron", options={"target": "trn2", "compiler": str(neuronx_cc), "cache": "off"})
    with pytest.raises(BackendCompilerFailed, match=r"\[NCC_EVRF001\] Operator sine") as caught:
        compiled(torch.randn(4))
    error = caught.value.inner_exception
    assert (
        isinstance(error, CompilerError)
        and error.source is not None
        and error.source.file == __file__
        and error.source.code == "return torch.sin(x)"
    )


def test_cache_show_tells_of_the_neff(neuronx_cc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"target": "trn2", "compiler": str(neuronx_cc), "cache_dir": str(tmp_path / "cache")}
    with pytest.warns(NoDeviceWarning):
        torch.compile(lambda x, y: x + y, backend="neuron", options=given)(torch.ones(3), torch.ones(3))
    (entry,) = entries(tmp_path / "cache", kind="artifact")
    described = entry.neff
    assert described is not None and described["lnc_size"] == 2
    assert described["inputs"] == [{"name": f"input{i}", "size": 12} for i in range(2)]
    assert described["outputs"] == [{"name": "output0", "size": 12}]
    show = ["cache", "show", entry.digest, "--cache-dir", str(tmp_path / "cache")]
    assert main([*show, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["neff"] == described
    assert main(show) == 0
    shown = capsys.readouterr().out
    assert "input0 (12 bytes), input1 (12 bytes)" in shown and described["uuid"] in shown
    path = entry.path / "artifact.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(show) == 0
    assert "the artifact is corrupt: its checksum does not match" in capsys.readouterr().out


def test_a_remembered_failure_names_its_compiler(neuronx_cc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NEURONX_CC_FAULT", "exit70")
    given = {"target": "trn2", "compiler": str(neuronx_cc)}
    for _ in range(2):
        torch._dynamo.reset()
        with pytest.raises(BackendCompilerFailed) as caught:
            torch.compile(torch.cos, backend="neuron", options=given)(torch.randn(7))
    assert "remembered: neuronx-cc 2.27.5334.0+f702b353 failed on this program on " in str(caught.value)


def test_with_neither_compiler_nor_device() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    x = torch.randn(4)
    with pytest.raises(BackendCompilerFailed, match="ND021: target 'trn2' needs its compiler"):
        torch.compile(model, backend="neuron", options={"target": "trn2"})(x)
    torch._dynamo.reset()
    with pytest.warns(NoDeviceWarning, match="programs for trn2 were not compiled for it, and run on the host"):
        result = torch.compile(model, backend="neuron", options={"target": "trn2", "emulate": "always"})(x)
    torch.testing.assert_close(result, model(x))


@pytest.mark.filterwarnings("ignore::neuron_dynamo.errors.NoDeviceWarning")
@pytest.mark.parametrize("named", ["/nope", "/bin/true"])
def test_a_named_compiler_that_is_not_there_is_told_with_a_warm_cache_too(neuronx_cc: Path, named: str) -> None:
    def run(**given: str) -> torch.Tensor:
        torch._dynamo.reset()
        return torch.compile(lambda x: x.tan() - 1, backend="neuron", options={"target": "trn2", "fallback": "error", **given})(x)

    x = torch.randn(5)
    with pytest.raises(BackendCompilerFailed, match="ND021: target 'trn2' needs its compiler: .*" + named):
        run(compiler=named)
    run(compiler=str(neuronx_cc))
    torch.testing.assert_close(run(), x.tan() - 1)
    with pytest.raises(BackendCompilerFailed, match="ND021: target 'trn2' needs the compiler that option 'compiler' names: .*" + named):
        run(compiler=named)


def test_bad_arguments_are_told_before_anything_is_lowered(neuronx_cc: Path) -> None:
    given = {"target": "trn2", "compiler": str(neuronx_cc), "compiler_args": "--output x"}
    assert Options.resolve(given, environ={}).compiler_args == ("--output", "x")
    with pytest.raises(BackendCompilerFailed, match="ND001: compiler_args holds '--output x'"):
        torch.compile(torch.sin, backend="neuron", options=given)(torch.randn(3))
    assert neuron_dynamo.reports() == []
