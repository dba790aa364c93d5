"""neuron-dynamo warmup: what the command line makes of its arguments, what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from neuron_dynamo import warmup
from neuron_dynamo.cli.main import main
from neuron_dynamo.cli.warmup import _optimizer
from neuron_dynamo.warmup import Limits, Model, Progress, Ranks, Script
from neuron_dynamo.warmup.jobs import InputShape
from neuron_dynamo.warmup.planning import Plan
from neuron_dynamo.warmup.summary import Outcome, Run, Summary
from tests.warmup.items import item


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Jobs and limits that reach the library, which answers with one hit, one compiled and, for a script bad.py, one failed."""
    made: list[tuple[Any, Any]] = []
    items = (item(tmp_path, "hit", level="disk"), item(tmp_path, "new [x]", seconds=3.0), item(tmp_path, "odd"))

    def warm(jobs: Sequence[Any], limits: Limits, progress: Progress) -> Summary:
        made.append((list(jobs), limits))
        bad = getattr(jobs[0], "script", "") == "bad.py"
        last = Outcome(items[2], "failed", "exit code 70\nlog", 1.0, 2) if bad else Outcome(items[2], "compiled", "", 1.0, 1)
        outcomes = (Outcome(items[0], "hit"), Outcome(items[1], "compiled", "", 2.5, 1), last)
        if getattr(jobs[0], "script", "") == "empty.py":
            return Summary((Run("job", 4.0),), (), 7.0)
        progress.collecting("job")
        progress.planned(Plan(items), limits)
        for outcome in outcomes:
            progress.finished(outcome)
        return Summary((Run("job", 4.0),), outcomes, 7.0)

    def plan(jobs: Sequence[Any], spool: Path) -> tuple[Plan, list[Run]]:
        made.append((list(jobs), None))
        failure = "it ended with exit code 1" if getattr(jobs[0], "script", "") == "bad.py" else ""
        return Plan(items), [Run("job", 4.0, failure)]

    monkeypatch.setattr(warmup, "warm", warm)
    monkeypatch.setattr(warmup, "plan", plan)
    for name in ("train.py", "bad.py", "empty.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return made


def test_a_script_and_its_arguments(calls: list[tuple[Any, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["warmup", "run", "--jobs", "3", "--memory", "8GB", "--timeout", "60", "--world-size", "4", "--ranks", "0-1", "train.py"]
    assert main([*command, "--jobs", "9", "-x"]) == 0
    limits = Limits(3, 8 * 10**9, 60.0, None)
    assert calls == [([Script("train.py", ("--jobs", "9", "-x"), False, Ranks(4, (0, 1)))], limits)]
    out, err = capsys.readouterr()
    assert ["new", "[x]", "inference", "1", "compiled", "1", "2.5"] in [line.split()[:7] for line in out.splitlines()]
    assert out.rstrip().endswith("1 hit, 2 compiled, 0 failed, in 7.0 s")
    assert err.splitlines() == [
        "collecting the graphs of job",
        "3 programs, 1 in the cache; 2 to compile, 3 at once, in an unknown time",
        "[1/3] hit hit",
        "[2/3] new [x] compiled in 2.5 s",
        "[3/3] odd compiled in 1.0 s",
    ]


def test_a_model_and_its_shapes(calls: list[tuple[Any, Any]]) -> None:
    command = "warmup model m:f --shape ids=BxS:int64 --dim S=128,256 --batch 1,4-5 --mode training,optimizer --target trn2 --dynamic"
    assert main([*command.split(), "--optimizer", "torch.optim:AdamW:lr=1e-3,betas=(0.9, 0.95)", "--scheduler", "tcp://h:1"]) == 0
    ((jobs, limits),) = calls
    given = {"lr": 1e-3, "betas": (0.9, 0.95)}
    shapes, dims = (InputShape("ids", ("B", "S"), "int64"),), (("S", (128, 256)),)
    modes = ("training", "optimizer")
    assert jobs == [Model("m:f", shapes, dims, (1, 4, 5), modes, True, "torch.optim:AdamW", given, {"target": "trn2"})]
    assert limits == Limits(scheduler="tcp://h:1")


def test_failures_are_told_everywhere(calls: list[tuple[Any, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "run", "--junit", "report.xml", "bad.py"]) == 1
    out, err = capsys.readouterr()
    assert "odd failed: exit code 70\nlog\n" in out and "[3/3] odd failed: exit code 70\n" in err
    assert '<failure message="exit code 70">' in (tmp_path / "report.xml").read_text()
    assert main(["warmup", "run", "--json", "bad.py"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["ok"], data["hit"], data["compiled"], data["failed"]) == (False, 1, 1, 1)
    assert main(["warmup", "run", "--junit", "no/folder/report.xml", "train.py"]) == 2


def test_a_script_that_compiles_nothing(calls: list[tuple[Any, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "run", "empty.py"]) == 0
    assert "nothing was compiled through backend='neuron'" in capsys.readouterr().out


def test_plan(calls: list[tuple[Any, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    for what, job in (("train.py", Script("train.py")), ("m:f", Model("m:f"))):
        assert main(["warmup", "plan", "--jobs", "2", what]) == 0
        assert calls.pop() == ([job], None)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["new", "[x]", "inference", "miss", "1", "100", "3.0"] in [line[:7] for line in lines]
    assert ["odd", "inference", "miss", "1", "100", "unknown"] in [line[:6] for line in lines]
    assert main(["warmup", "plan", "--json", "bad.py"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["hits"], data["misses"], data["predicted_seconds"], data["items"][1]["predicted_seconds"]) == (1, 2, None, 3.0)


@pytest.mark.parametrize(
    "command",
    [
        ["run", "absent.py"],
        ["run", "--jobs", "0", "train.py"],
        ["run", "--memory", "0", "train.py"],
        ["run", "--ranks", "0", "train.py"],
        ["model", "m:f", "--shape", "ids"],
        ["model", "m:f", "--target", "host", "--lnc", "2"],
        ["model", "m:f", "--optimizer", "torch.optim:AdamW:lr"],
        ["model", "absent.toml"],
    ],
)
def test_bad_arguments_are_the_users(calls: list[tuple[Any, Any]], command: list[str]) -> None:
    assert main(["warmup", *command]) == 2
    assert calls == []


def test_memory_that_is_no_size(calls: list[tuple[Any, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("GB", "8XB"):
        with pytest.raises(SystemExit):
            main(["warmup", "run", "--memory", wrong, "train.py"])
        assert f"{wrong!r} is not a size" in capsys.readouterr().err
    assert calls == []


def test_optimizers() -> None:
    assert _optimizer("torch.optim:SGD") == ("torch.optim:SGD", {}) and _optimizer(None) == ("", {})
