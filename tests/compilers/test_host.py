"""HostCompiler: identity, artifacts that load elsewhere, and those that must not load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from neuron_dynamo import xla
from neuron_dynamo.compilers.host import HostCompiler
from neuron_dynamo.errors import CompilerError
from neuron_dynamo.lowering.program import Program
from tests.host_programs import add, spec

PROGRAM = add(spec(8, 8))


@pytest.fixture(scope="module")
def artifact() -> bytes:
    return HostCompiler().compile(PROGRAM)


def test_identity_names_all_that_changes_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    identity = dict(HostCompiler().identity())
    assert identity["compiler"] == "xla-cpu"
    assert identity["jaxlib"] == xla.jaxlib_version()
    assert identity["cpu"].endswith(xla.cpu_features().digest)
    assert identity["cpu_flags"].split() == list(xla.cpu_features().flags)
    assert identity["xla_flags"] == xla.code_flags()
    assert HostCompiler().identity() == tuple(identity.items())
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    assert dict(HostCompiler().identity())["xla_flags"] != identity["xla_flags"]


def test_an_artifact_runs_here_and_in_another_process(artifact: bytes, tmp_path: Path) -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    assert torch.equal(HostCompiler().load(artifact, PROGRAM.signature)([a, b])[0], a + b)
    (tmp_path / "artifact").write_bytes(artifact)
    code = """
import sys, torch
from neuron_dynamo.compilers.host import HostCompiler
from neuron_dynamo.lowering.program import Signature, TensorSpec
of = TensorSpec((8, 8), torch.float32)
executable = HostCompiler().load(open(sys.argv[1], "rb").read(), Signature((of, of), (of,)))
print(executable([torch.full((8, 8), 2.0), torch.full((8, 8), 3.0)])[0].sum().item())
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (".", os.environ.get("PYTHONPATH"))))}
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "artifact")], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout == "320.0\n", result.stderr


def test_corrupt_artifacts_are_an_error(artifact: bytes) -> None:
    middle = len(artifact) // 2
    flipped = artifact[:middle] + bytes([artifact[middle] ^ 1]) + artifact[middle + 1 :]
    header_end = artifact.index(b"\n", 10) + 1
    bad = [
        b"",
        b"\n",
        b"garbage",
        artifact[:5],
        artifact[:40],
        artifact[:header_end],
        artifact[:-1],
        artifact + b"x",
        flipped,
        artifact[1:],
    ]
    bad += [artifact[:8] + line + b"\n" + artifact[header_end:] for line in (b"{}", b"[]", b"3", b"\xff", b"null")]
    for data in bad:
        with pytest.raises(CompilerError, match="corrupt"):
            HostCompiler().load(data, PROGRAM.signature)


@pytest.mark.parametrize(("key", "value"), [("cpu", "x86_64-GenuineIntel-6-143 0123456789ab"), ("jaxlib", "0.0.1")])
def test_artifacts_for_another_machine_are_refused_before_xla_sees_them(
    artifact: bytes, key: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, code = artifact[8:].split(b"\n", 1)
    other = {**json.loads(header), key: value}

    def deserialize(data: bytes) -> None:
        raise AssertionError("the machine code was mapped")

    monkeypatch.setattr(xla, "deserialize", deserialize)
    with pytest.raises(CompilerError, match=f"made for {key} {value}"):
        HostCompiler().load(artifact[:8] + json.dumps(other).encode() + b"\n" + code, PROGRAM.signature)


def test_programs_that_xla_refuses() -> None:
    with pytest.raises(CompilerError):
        HostCompiler().compile(Program(b"no StableHLO", PROGRAM.signature))
