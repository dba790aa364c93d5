"""diagnose: every kind of trouble is seen and comes with a remedy."""

from __future__ import annotations

import importlib.metadata
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuron_dynamo import doctor, names
from neuron_dynamo.doctor import MINIMUM_PYTHON, REQUIRED, Check, Diagnosis, cpu_features, diagnose
from neuron_dynamo.errors import OptionError
from neuron_dynamo.runtime import nrt_api
from tests.doubles.libnrt import c_compiler, double

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def _plain_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("NEURON_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NEURON_DYNAMO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(nrt_api, "LIBRARY_FOLDER", tmp_path / "sdk")


def check(diagnosis: Diagnosis, name: str) -> Check:
    (found,) = [check for check in diagnosis.checks if check.name == name]
    return found


def test_required_versions_are_those_of_pyproject() -> None:
    declared = {spec.split(mark)[0]: spec for spec in PROJECT["dependencies"] for mark in ("==", ">=") if mark in spec.split(",")[0]}
    assert declared["torch"] == f"torch>={REQUIRED['torch']},<2.14"
    assert {declared[name] for name in REQUIRED if name != "torch"} == {f"{name}=={REQUIRED[name]}" for name in REQUIRED if name != "torch"}
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, MINIMUM_PYTHON))}"


def test_backend_names_are_those_of_pyproject() -> None:
    assert tuple(PROJECT["entry-points"][names.ENTRY_POINT_GROUP]) == doctor.BACKEND_NAMES


def test_every_problem_and_note_has_a_remedy() -> None:
    diagnosis = diagnose({"target": "trn1"})
    assert not diagnosis.healthy
    assert [each.name for each in diagnosis.checks if each.status != "ok" and not each.remedy] == []
    assert {each.name for each in diagnosis.checks if each.status == "problem"} >= {"neuronx-cc", "libnrt"}


def test_host_target_needs_no_sdk() -> None:
    diagnosis = diagnose()
    assert [check(diagnosis, name).status for name in ("target", "neuronx-cc", "libnrt")] == ["ok", "note", "note"]


def test_json_is_complete() -> None:
    data = diagnose().to_json()
    assert data["target"] == "host"
    assert data["checks"][0].keys() == {"name", "status", "found", "remedy"}


def test_other_version_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "2.130.1")
    torch_check = check(diagnose(), "torch")
    assert (torch_check.status, torch_check.found, torch_check.remedy) == (
        "problem",
        "2.130.1, but 2.13 is needed",
        "run 'pip install torch==2.13.*'",
    )


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cpu", "2.13"])
def test_versions_that_fit(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("torch.__version__", version)
    assert check(diagnose(), "torch").status == "ok"


class _Owned:
    def __init__(self, owner: str) -> None:
        self.dist = type("Distribution", (), {"name": owner})


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def own(*names: str) -> None:
        points = [_Owned(name) for name in names]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: points)

    return own


@pytest.mark.parametrize(
    ("names", "status", "found"),
    [
        (["neuron-dynamo"], "ok", "registered by neuron-dynamo"),
        (["neuron_dynamo"], "ok", "registered by neuron-dynamo"),
        ([], "problem", "not registered"),
        (["torch-neuronx"], "problem", "registered by torch-neuronx"),
        (["torch-neuronx", "neuron-dynamo"], "problem", "registered by torch-neuronx first"),
        (["neuron-dynamo", "torch-neuronx"], "note", "registered by neuron-dynamo; torch-neuronx claims it too"),
    ],
)
def test_owner_of_the_backend_name(owners: Callable[..., None], names: list[str], status: str, found: str) -> None:
    owners(*names)
    backend = check(diagnose(), "backend 'neuron'")
    assert (backend.status, backend.found) == (status, found)


def _install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda asked: "1.0.post1" if asked == name else real(asked))


def test_torch_neuronx_registers_neuron_when_imported(owners: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    owners("neuron-dynamo")
    _install("torch-neuronx", monkeypatch)
    diagnosis = diagnose()
    assert check(diagnosis, "backend 'neuron'").status == "note"
    assert check(diagnosis, "backend 'neuron_dynamo'").status == "ok"


def test_bad_environment_variable_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_DYNAMO_RNG", "dice")
    settings = check(diagnose(), "options")
    assert (settings.status, settings.found) == ("problem", "environment variable NEURON_DYNAMO_RNG is 'dice'")


def test_bad_option_raises() -> None:
    with pytest.raises(OptionError, match="abacus"):
        diagnose({"target": "abacus"})


def test_cache_directory_is_not_made(tmp_path: Path) -> None:
    assert check(diagnose(), "cache").found == f"{tmp_path / 'cache'}: 0 entries, made at first use"
    assert not (tmp_path / "cache").exists()


def test_cache_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    cache = check(diagnose(), "cache")
    assert (cache.status, cache.found) == ("problem", f"{tmp_path / 'cache'}: {tmp_path / 'cache'} is not a directory")
    assert "NEURON_DYNAMO_CACHE_DIR" in cache.remedy


def test_cache_directory_that_refuses_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(30, "Read-only file system")

    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    assert check(diagnose(), "cache").status == "problem"
    assert check(diagnose({"cache": "readonly"}), "cache").found == f"{tmp_path / 'cache'}: 0 entries, not writable"
    assert check(diagnose({"cache": "off"}), "cache").found == "off"


def _compiler(tmp_path: Path, script: str) -> Path:
    program = tmp_path / "bin" / "neuronx-cc"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_neuronx_cc_tells_its_version_on_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    script = "echo 'NeuronX Compiler version 2.27.5334.0+f702b353' >&2; echo 'Python version 3.13.7'; echo > log-neuron-cc.txt"
    program = _compiler(tmp_path, script)
    assert check(diagnose(), "neuronx-cc") == Check("neuronx-cc", "ok", f"2.27.5334.0+f702b353 at {program}")
    assert list(folder.iterdir()) == []


def test_neuronx_cc_that_fails(tmp_path: Path) -> None:
    program = _compiler(tmp_path, "exit 70")
    compiler = check(diagnose({"target": "trn2"}), "neuronx-cc")
    assert (compiler.status, compiler.found) == ("problem", f"{program} does not tell its version (exit code 70)")


def test_neuronx_cc_placeholder(monkeypatch: pytest.MonkeyPatch) -> None:
    _install("neuronx-cc", monkeypatch)
    compiler = check(diagnose(), "neuronx-cc")
    assert (compiler.status, compiler.found) == ("note", "neuronx-cc is the package index's placeholder, which holds no compiler")
    assert compiler.remedy.startswith("uninstall it")


def test_neuronx_cc_is_missing() -> None:
    assert check(diagnose({"target": "trn2"}), "neuronx-cc").status == "problem"
    missing = check(diagnose({"target": "trn2", "emulate": "always"}), "neuronx-cc")
    assert (missing.status, missing.found) == ("note", "neuronx-cc is not on PATH")
    named = check(diagnose({"compiler": "/nowhere/neuronx-cc"}), "neuronx-cc")
    assert named.found == "there is no program '/nowhere/neuronx-cc', which option 'compiler' names"


def test_the_command_line_that_would_be_run(tmp_path: Path) -> None:
    _compiler(tmp_path, "echo 'NeuronX Compiler version 2.26.1.0'")
    given = {"target": "trn2", "compiler_args": "-O1", "compiler_jobs": 3, "compiler_timeout": 90}
    line = check(diagnose(given), "compiler arguments")
    assert line.found == "neuronx-cc compile --framework XLA --target trn2 --lnc 2 -O1 --auto-cast none; 3 at once, 90 s each"
    bad = check(diagnose({"target": "trn2", "compiler_args": "--output=x"}), "compiler arguments")
    assert (bad.status, bad.remedy) == ("problem", "each compile has a directory of its own")
    assert [each.name for each in diagnose().checks if each.name == "compiler arguments"] == []


def test_torch_neuronx_shares_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.name for each in diagnose().checks if each.name == "torch-neuronx"] == []
    _install("torch-neuronx", monkeypatch)
    conflict = check(diagnose(), "torch-neuronx")
    assert conflict.status == "note" and conflict.found.startswith("1.0.post1, which takes the backend name 'neuron'")
    assert "backend='neuron_dynamo'" in conflict.remedy


def test_libnrt_is_found_on_the_library_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnrt.so.1").write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert check(diagnose(), "libnrt").found.startswith(str(tmp_path / "libnrt.so.1"))


@pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc, clang): the libnrt double cannot be built")
def test_the_device_that_libnrt_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = double()
    lib.reset()
    options = {"target": "trn2", "libnrt": lib.path}
    assert check(diagnose(options), "libnrt").found == f"{lib.path}, 2 logical NeuronCores"
    assert check(diagnose(options), "device") == Check("device", "ok", "trn2, lnc 2 (libnrt)")
    other = check(diagnose({**options, "target": "trn1"}), "device")
    assert other.status == "problem" and "trn2, lnc 2; graphs are compiled for trn1, lnc 1" in other.found and "'trn2'" in other.remedy
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0-x")
    assert check(diagnose(options), "cores").found == "NEURON_RT_VISIBLE_CORES is '0-x'"
    lib.configure(cores=0)
    assert check(diagnose(options), "libnrt").status == "problem" and "no Neuron device" in check(diagnose(options), "libnrt").found
    assert check(diagnose({"libnrt": lib.path}), "libnrt").status == "note"
    assert check(diagnose({"libnrt": "/nowhere"}), "libnrt").found == "not found"
    assert lib.calls("nrt_init") == 0


def test_a_machine_that_compiles_and_has_no_device(tmp_path: Path) -> None:
    """It fills the cache, and the host runs the programs: that is no problem, unless more was asked for."""
    _compiler(tmp_path, "echo 'NeuronX Compiler version 2.27.1.0'")

    def libnrt(**given: Any) -> Check:
        return check(diagnose({"target": "trn2", **given}), "libnrt")

    assert libnrt() == Check(
        "libnrt",
        "note",
        "not found; programs for trn2 are compiled and cached, and run on the host",
        "to run on a device, install the Neuron runtime (libnrt) from the AWS Neuron SDK; target 'host' needs no SDK",
    )
    assert libnrt(cache="off").found == "not found; programs for trn2 are compiled, and run on the host"
    assert (libnrt(emulate="never").status, libnrt(emulate="never").found) == ("problem", "not found")
    assert libnrt(libnrt="/nowhere").status == "problem"
    uncompiled = libnrt(compiler="/nowhere/neuronx-cc", emulate="always")
    assert (uncompiled.status, uncompiled.found) == ("note", "not found; programs for trn2 are not compiled, and run on the host")
    assert libnrt(compiler="/nowhere/neuronx-cc").status == "problem"


@pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc, clang): the libnrt double cannot be built")
def test_a_machine_that_compiles_with_libnrt_and_no_device(tmp_path: Path) -> None:
    _compiler(tmp_path, "echo 'NeuronX Compiler version 2.27.1.0'")
    lib = double()
    lib.reset()
    lib.configure(cores=0)
    libnrt = check(diagnose({"target": "trn2", "libnrt": lib.path}), "libnrt")
    assert (libnrt.status, libnrt.found) == (
        "note",
        f"{lib.path}, no Neuron device; programs for trn2 are compiled and cached, and run on the host",
    )
    assert libnrt.remedy.startswith("to run on a device, load the Neuron driver")


def test_cpu_features_in_our_order(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu amx_tile avx2 avx sse\n\nprocessor\t: 1\nflags\t\t: fpu fma\n")
    assert cpu_features(cpuinfo) == ("avx", "avx2", "amx_tile")
    assert cpu_features(tmp_path / "absent") == ()
