"""A machine with the double of neuronx-cc on it, and small programs for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuron_dynamo.compilers.neuronx import emulation
from neuron_dynamo.errors import SourceLine
from neuron_dynamo.lowering.program import OpSource, Program
from neuron_dynamo.options import Options
from tests.doubles.install import install_compiler
from tests.host_programs import add, spec


@pytest.fixture(autouse=True)
def _plain_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("NEURON_", "FAKE_")) and name != "NEURON_DYNAMO_CACHE_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tmp_path / 'empty'}:/usr/bin:/bin")
    monkeypatch.setattr(emulation, "_warned", set())


@pytest.fixture(scope="session")
def neuronx_cc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The double's path: one for the session, as each new path is asked for its version."""
    return install_compiler(tmp_path_factory.mktemp("neuronx"))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """What the double was called with, so far."""
    path = tmp_path / "runs.jsonl"
    monkeypatch.setenv("FAKE_NEURONX_CC_RECORD", str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def options(neuronx_cc: Path) -> Callable[..., Options]:
    return lambda **given: Options.resolve({"target": "trn2", "compiler": str(neuronx_cc), **given}, environ={})


@pytest.fixture(scope="session")
def adding() -> Program:
    """(a, b) -> a + b of two float32 vectors of 8, with a source line."""

    made = add(spec(8))
    return Program(
        made.stablehlo, made.signature, (OpSource(0, "stablehlo.add", "add", "aten.add.Tensor", SourceLine("net.py", 7, "head")),)
    )
