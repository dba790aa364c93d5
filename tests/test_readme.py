"""README says what the code says: its tables, its commands, its limits."""

from __future__ import annotations

import os
import re

import pytest

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
