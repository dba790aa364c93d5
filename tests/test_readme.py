"""README says what the code says: its tables, its commands, its limits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from neuron_dynamo import errors
from neuron_dynamo.cli.main import build_parser
from tools import _readme

TEXT = _readme.README.read_text()


def test_tables_are_those_of_the_code() -> None:
    assert _readme.with_tables(TEXT) == TEXT, "run 'python -m tools._readme'"


def test_codes_are_unique() -> None:
    codes = [code for code, _, _ in _readme.error_codes()]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"ND[01]\d\d", code) for code in codes)


def test_every_code_that_the_package_prints_is_in_the_table() -> None:
    package = _readme.README.parent / "neuron_dynamo"
    printed = {code for path in package.rglob("*.py") for code in re.findall(r"\bND\d{3}\b", path.read_text())}
    listed = {code for code, _, _ in _readme.error_codes()}
    assert printed - listed == {errors.NeuronDynamoError.code}


def test_a_class_without_a_code_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "Stray", type("Stray", (errors.ExecutionError,), {}), raising=False)
    with pytest.raises(ValueError, match="Stray has no code of its own"):
        list(_readme.error_codes())


def test_the_commands_exist() -> None:
    commands = set(re.findall(r"^\./(tools/\w+)", TEXT, re.MULTILINE))
    assert {"tools/demo", "tools/test"} <= commands
    assert [name for name in commands if not os.access(_readme.README.parent / name, os.X_OK)] == []


def test_the_lines_of_neuron_dynamo_parse() -> None:
    lines = re.findall(r"^neuron-dynamo (.+?)(?: *#.*)?$", TEXT, re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        build_parser().parse_args(line.split())


def _block(after: str, language: str) -> str:
    """The first block of that language behind the text `after`."""
    found = re.search(rf"```{language}\n(.*?)```", TEXT[TEXT.index(after) :], re.DOTALL)
    assert found is not None
    return found[1]


def test_the_ci_recipe(tmp_path: Path) -> None:
    """The commands of its jobs, in their order, in one folder: what a job uploads, the next one downloads."""
    (tmp_path / "train.py").write_text(_block("`train.py`:", "python"))
    tools = tmp_path / "bin"
    tools.mkdir()
    commands = {"python": '"$@"', "neuron-dynamo": "-c 'import sys; from neuron_dynamo.cli.main import main; sys.exit(main())' \"$@\""}
    for name, rest in commands.items():
        (tools / name).write_text(f"#!/bin/sh\nexec {sys.executable} {rest}\n")
        (tools / name).chmod(0o755)
    root = str(_readme.README.parent)
    base = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": root}
    workflow = yaml.safe_load(_block("The workflow", "yaml"))
    printed = []
    for job in ("warm", "train"):
        description = workflow["jobs"][job]
        environment = {**base, **workflow["env"], **description.get("env", {})}
        for step in description["steps"]:
            if "run" in step:
                done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                printed.append(done.stdout)
        if job == "warm":
            subprocess.run(["rm", "-r", "warm"], cwd=tmp_path, check=True)  # the next job begins on a machine of its own
    assert re.fullmatch(r"loss \d\.\d{4}\n", printed[-1])
    suite = ET.parse(tmp_path / "warmup.xml").getroot()
    assert suite.get("failures") == "0" and len(suite) >= 4  # the script; forward, backward and the optimizer's step


def test_the_manifest_is_one(tmp_path: Path) -> None:
    from neuron_dynamo.warmup.manifest import read_manifest

    text = _block("A manifest names", "toml")
    assert tomllib.loads(text)
    (tmp_path / "fleet.toml").write_text(text)
    assert [job.label for job in read_manifest(tmp_path / "fleet.toml")] == ["models:make_llama", "train.py"]
