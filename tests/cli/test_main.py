"""The command as a whole: exit codes, errors on stderr, JSON on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import neuron_dynamo.doctor
from neuron_dynamo.cli.main import build_parser, main
from neuron_dynamo.doctor import Check, Diagnosis
from neuron_dynamo.errors import InspectError
from neuron_dynamo.version import __version__


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"neuron-dynamo {__version__}\n"


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["inspect", "m:f"], ["check", "m:f"], ["doctor"], ["cache", "where"], ["cache", "ls"], ["cache", "show", "0"]]
)
def test_every_command_takes_json_and_debug(command: list[str]) -> None:
    args = build_parser().parse_args([*command, "--json", "--debug"])
    assert args.json
    assert args.debug


def test_our_error_is_one_message_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "nothing"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ND050: 'nothing' does not name a function\n")
    assert "what to do: give MODULE:FUNCTION" in captured.err
    assert "Traceback" not in captured.err


def test_debug_raises_our_error() -> None:
    with pytest.raises(InspectError):
        main(["inspect", "nothing", "--debug"])


def test_bad_option_is_told_before_the_model_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no_such_module:make", "--lnc", "many"]) == 2
    assert capsys.readouterr().err.startswith("ND001: option 'lnc' is 'many'")


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; from neuron_dynamo.cli.main import main; sys.exit(main(['doctor', '--json']))"]
    reader, writer = os.pipe()
    os.close(reader)
    environ = {**os.environ, "NEURON_DYNAMO_CACHE_DIR": str(tmp_path)}
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, env=environ, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PROBLEM = Check("torch", "problem", "1.0 [old]", "run 'pip install torch==2.13.*'")
FINE = Check("python", "ok", "3.11.7")


@pytest.mark.parametrize(("checks", "code"), [((FINE,), 0), ((FINE, PROBLEM), 1)])
def test_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], checks: tuple[Check, ...], code: int) -> None:
    diagnosis = Diagnosis("trn2", checks)
    monkeypatch.setattr(neuron_dynamo.doctor, "diagnose", lambda options: diagnosis if options == {"target": "trn2"} else None)
    assert main(["doctor", "--target", "trn2"]) == code
    out = capsys.readouterr().out
    assert ("no problems" in out) == (code == 0)
    assert ("1.0 [old]" in out and "run 'pip install torch==2.13.*'" in out) == (code == 1)
    assert main(["doctor", "--target", "trn2", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == diagnosis.to_json()
