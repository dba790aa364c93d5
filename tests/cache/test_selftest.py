"""`cache selftest`: quiet on a sound model, and names the circumstance under which another one changes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_dynamo.cache import selftest
from neuron_dynamo.cache.selftest import Circumstances, KeyDifference
from neuron_dynamo.cli.main import main

MODULE = sys.modules[Circumstances.__module__]  # its name in the package is the function's

MODEL = """
import torch

def sound():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU()), (torch.ones(2, 4),)
"""


def program(**changes: Any) -> dict[str, Any]:
    values = {"digest": "d", "key": [["program", "p"]], "program_key": [["graph", "g"]], "graph": "", "stablehlo": "x\n", "bytes": "00"}
    return {**values, **changes}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return "a_model:sound"


def test_a_sound_model_is_equal_to_the_last_byte(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "selftest", module, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["differences"] == []
    assert [name for name, _ in data["keys"]] == ["graph 0 (forward) program 0", "graph 1 (backward) program 0"]
    assert all(len(digest) == 64 for _, digest in data["keys"])


def test_the_circumstance_is_found(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(spec: str, where: Circumstances, options: dict[str, Any], timeout: float) -> dict[str, Any]:
        changed = {"key": [["program", "q"]], "stablehlo": "y\n"} if where.seed != "0" else {}
        return {"graph 0": program(**changed)}

    monkeypatch.setattr(MODULE, "_run", run)
    assert main(["cache", "selftest", module]) == 1
    assert "graph 0: stablehlo differs (another PYTHONHASHSEED)" in capsys.readouterr().out
    assert [(d.what, d.cause) for d in selftest(module).differences] == [
        ("key part program", "another PYTHONHASHSEED"),
        ("stablehlo", "another PYTHONHASHSEED"),
    ]


def test_a_program_that_only_one_process_has_is_a_difference(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_run", lambda spec, where, *_: {"graph 1": program()} if where.moved else {})
    assert (
        KeyDifference("graph 1", "the list of programs", "the module in another folder", "only one process has it")
        in selftest(module).differences
    )


def test_a_process_that_fails_is_an_error(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "selftest", module.replace("sound", "absent")]) == 2
    assert "a_model' has no 'absent'" in capsys.readouterr().err
    assert os.listdir() == ["a_model.py"]
