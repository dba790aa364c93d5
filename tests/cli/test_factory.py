"""module:function: what is accepted, and what each mistake says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_dynamo.cli.factory import load_model
from neuron_dynamo.errors import InspectError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Writes a module with the given text into the current folder and returns its name, one that no other test has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str) -> str:
        name = f"factory_{request.node.name.replace('[', '_').rstrip(']')}"
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_pair(module: Callable[[str], str]) -> None:
    name = module("def make():\n    return max, (3, 5)\n")
    model, args, kwargs = load_model(f"{name}:make")
    assert (model, args, kwargs) == (max, (3, 5), {})


def test_triple_with_list_of_args(module: Callable[[str], str]) -> None:
    name = module("def make():\n    return sorted, [[3, 1, 2]], {'reverse': True}\n")
    model, args, kwargs = load_model(f"{name}:make")
    assert model(*args, **kwargs) == [3, 2, 1]


def test_static_method_as_function(module: Callable[[str], str]) -> None:
    name = module("class Zoo:\n    @staticmethod\n    def make():\n        return len, ('abc',)\n")
    assert load_model(f"{name}:Zoo.make") == (len, ("abc",), {})


def test_current_folder_wins_over_installed_package(module: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    name = module("def make():\n    return abs, (-1,)\n")
    (elsewhere / f"{name}.py").write_text("def make():\n    return abs, (-2,)\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    assert load_model(f"{name}:make")[1] == (-1,)


@pytest.mark.parametrize("spec", ["", "model", "model.py:make", ":make", "model:", "pkg/model:make", "model:make()"])
def test_malformed(spec: str) -> None:
    with pytest.raises(InspectError) as caught:
        load_model(spec)
    assert f"{spec!r} does not name a function" in str(caught.value)
    assert "MODULE:FUNCTION" in caught.value.remedy


def test_no_such_module(module: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(InspectError) as caught:
        load_model("no_such_module_here.deeper:make")
    assert caught.value.what == "there is no module 'no_such_module_here.deeper'"
    assert str(tmp_path) in caught.value.remedy


def test_module_that_lacks_its_own_import_is_not_called_absent(module: Callable[[str], str]) -> None:
    name = module("import no_such_dependency_here\n")
    with pytest.raises(InspectError) as caught:
        load_model(f"{name}:make")
    assert caught.value.what == f"importing {name}:make failed: ModuleNotFoundError: No module named 'no_such_dependency_here'"


def test_no_such_function_lists_those_there_are(module: Callable[[str], str]) -> None:
    name = module("from os.path import join\nlimit = 3\ndef tiny(): ...\ndef large(): ...\n")
    with pytest.raises(InspectError) as caught:
        load_model(f"{name}:medium")
    assert caught.value.what == f"module {name!r} has no 'medium'"
    assert caught.value.remedy == "it defines tiny, large"


def test_not_a_function(module: Callable[[str], str]) -> None:
    name = module("make = 3\n")
    with pytest.raises(InspectError, match="is of type int, not a function"):
        load_model(f"{name}:make")


def test_function_that_fails_keeps_its_cause(module: Callable[[str], str]) -> None:
    name = module("def make():\n    raise ValueError('no weights')\n")
    with pytest.raises(InspectError) as caught:
        load_model(f"{name}:make")
    assert caught.value.what == f"{name}:make failed: ValueError: no weights"
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("returned", "described"),
    [
        ("3", "int"),
        ("(len,)", "(builtin_function_or_method)"),
        ("(3, ())", "(int, tuple)"),
        ("(len, 'abc', 4)", "str"),
        ("(len, (), 4)", "int"),
    ],
)
def test_wrong_result(module: Callable[[str], str], returned: str, described: str) -> None:
    name = module(f"def make():\n    return {returned}\n")
    with pytest.raises(InspectError) as caught:
        load_model(f"{name}:make")
    assert described in caught.value.what
    assert "(callable, args) or (callable, args, kwargs)" in caught.value.remedy
