"""Which compiler is there, and what is said where there is none."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

from neuron_dynamo.compilers.neuronx.find import find, placeholder
from neuron_dynamo.errors import CompilerMissingError


def script(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / "neuronx-cc"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def test_the_double_tells_its_version(neuronx_cc: Path) -> None:
    found = find(str(neuronx_cc))
    assert (found.path, found.version, found.release) == (neuronx_cc, "2.27.5334.0+f702b353", (2, 27))
    assert len(found.digest) == 16


@pytest.mark.parametrize("stream", ["1", "2"])
def test_on_path_and_on_either_stream(stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = script(tmp_path / "bin", f"echo > litter; echo 'NeuronX Compiler version 2.25.3371.0+f524e9bc' >&{stream}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    found = find()
    assert (found.path, found.version, found.release) == (program, "2.25.3371.0+f524e9bc", (2, 25))
    assert not (tmp_path / "litter").exists()


def test_asked_once_for_each_state_of_the_file(tmp_path: Path) -> None:
    count = tmp_path / "count"
    text = f"echo x >> {count}; echo 'NeuronX Compiler version {{}}'"
    program = script(tmp_path / "bin", text.format("2.26.1.0"))
    assert find(str(program)).version == find(str(program)).version == "2.26.1.0"
    assert count.read_text() == "x\n"
    script(tmp_path / "bin", text.format("2.27.10.0"))
    assert find(str(program)).version == "2.27.10.0"


def test_environments_at_other_paths_have_the_same_compiler(tmp_path: Path) -> None:
    """What pip writes into a program's first lines differs between the machine that warms a cache and the one that uses it."""
    short, long = "#!{0}\n", "#!/bin/sh\n'''exec' {0} \"$0\" \"$@\"\n' '''\n"
    digests = []
    for name, head, body in (("one", short, ""), ("two", short, ""), ("three", long, ""), ("one", short, "import re\n")):
        python = tmp_path / name / "python3"
        program = script(tmp_path / name, "")
        python.unlink(missing_ok=True)
        python.symlink_to(sys.executable)
        program.write_text(f"{head.format(python)}{body}print('NeuronX Compiler version 2.27.1.0')\n")
        digests.append(find(str(program)).digest)
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_no_compiler() -> None:
    with pytest.raises(CompilerMissingError, match="neuronx-cc is not on PATH") as caught:
        find()
    assert "AWS Neuron SDK" in caught.value.remedy


def test_no_program_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(CompilerMissingError, match="which option 'compiler' names"):
        find(str(tmp_path / "absent"))


def test_the_placeholder_of_the_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not placeholder()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0.post1")
    with pytest.raises(CompilerMissingError, match="placeholder, which holds no compiler") as caught:
        find()
    assert caught.value.remedy.startswith("uninstall it")


def test_a_program_that_is_a_placeholder(tmp_path: Path) -> None:
    program = script(tmp_path / "bin", "echo 'WRONG PACKAGE. Please install the package from Neuron Repository'; exit 1")
    with pytest.raises(CompilerMissingError, match="is a placeholder") as caught:
        find(str(program))
    assert caught.value.remedy.startswith("uninstall it")


@pytest.mark.parametrize(("text", "says"), [("exit 3", r"\(exit code 3\)"), ("echo hello", "it says 'hello'")])
def test_a_program_without_a_version(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(CompilerMissingError, match=says):
        find(str(script(tmp_path / "bin", text)))


def test_a_program_that_cannot_run(tmp_path: Path) -> None:
    program = tmp_path / "neuronx-cc"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(CompilerMissingError, match="does not run"):
        find(str(program))
