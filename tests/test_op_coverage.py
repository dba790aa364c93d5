"""docs/op_coverage.json against a seeded sample of the databases, and the tool's judgement on what is wrong on purpose."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from neuron_dynamo.lowering import registry
from tools._coverage import table
from tools._coverage.cases import Case, cases, units
from tools._coverage.judge import distribution_differs, judge, judge_together
from tools._coverage.verdicts import Unit

ROOT = Path(__file__).resolve().parents[1]


def test_a_sample_of_the_databases_is_as_the_table_says() -> None:
    command = [sys.executable, "-m", "tools._coverage", "--sample", "40", "--seed", "3", "--check", "--processes", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_every_entry_of_the_databases_is_in_the_table() -> None:
    stored = {key.rsplit("/", 2)[0] for key in json.loads(table.JSON.read_text())["cases"]}
    by_entry = {f"{unit.database}/{unit.name}": unit for unit in units()}
    missing = [entry for entry, unit in by_entry.items() if entry not in stored and next(iter(cases(unit)), None) is not None]
    assert missing == []


@pytest.fixture
def _wrong_sine(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load()
    cosine = registry._RULES[torch.ops.aten.cos.default]
    monkeypatch.setitem(registry._RULES, torch.ops.aten.sin.default, cosine)


@pytest.mark.usefixtures("_wrong_sine")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_wrong_rule_is_found(direction: str) -> None:
    found = list(cases(Unit("op", "sin", "float32", direction)))
    assert judge(found[0]).letter == "W"
    assert not judge_together(found)


def test_verdicts() -> None:
    x = torch.tensor([1.0, 2.0, -3.0])
    assert judge(Case(torch.sin, (x,), {})).letter == "N"
    assert judge(Case(lambda t: t.view(3), (x,), {})).letter == "-"
    assert judge(Case(torch.linalg.eigvals, (torch.eye(3),), {})).letter == "H"
    assert judge(Case(torch.equal, (x, x), {})).letter == "B"
    assert judge(Case(torch.add, (x, torch.ones(2)), {})).letter == "X"
    random = judge(Case(torch.nn.functional.dropout, (torch.ones(64),), {}))
    assert (random.letter, random.detail) == ("N", "random")


def test_biased_draws_are_found() -> None:
    torch.manual_seed(0)
    assert distribution_differs(torch.rand(2000), [torch.rand(2000), torch.rand(2000)]) == ""
    assert distribution_differs(torch.rand(2000) * 1.2, [torch.rand(2000), torch.rand(2000)]) != ""


def test_runs_of_letters_are_kept_in_short() -> None:
    letters = ["N"] * 12 + ["P", "N", "N"]
    assert table.encode(letters) == "N12 P1 N2"
    assert table.decode("N12 P1 N2") == letters
    assert table.share(Counter("NNNP-XW")) == (3, 5)


def test_what_is_measured_anew_joins_the_table() -> None:
    stored = {"cases": {"a": "N2 P1", "b": "H1"}, "host_ops": {"a": {"x": 1}, "b": {"y": 1}}, "median_first_call_seconds": 0.2}
    made = {"cases": {"a": "?2 N1", "c": "W1"}, "host_ops": {}, "median_first_call_seconds": None}
    assert table.merged(stored, made) == {
        "cases": {"a": "N3", "b": "H1", "c": "W1"},
        "host_ops": {"b": {"y": 1}},
        "median_first_call_seconds": 0.2,
    }


def test_a_judge_that_fails_finds_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools._coverage import worker

    def fail(*args: object) -> None:
        raise ValueError("no opinion")

    monkeypatch.setattr("tools._coverage.judge.judge", fail)
    said: list[dict[str, object]] = []
    worker._unit(Unit("op", "sin", "float32", "forward"), set(), [0], 1, said.append, "host")
    assert {"case": 0, "letter": "E", "detail": "while it was judged: ValueError: no opinion"} in said
