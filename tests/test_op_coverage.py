"""docs/op_coverage.json against a seeded sample of the databases, and the tool's judgement on what is wrong on purpose."""

import copy
import functools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_dynamo.lowering import registry
from tools._coverage import table
from tools._coverage.cases import Case, cases, units
from tools._coverage.judge import distribution_differs, judge, judge_together
from tools._coverage.verdicts import Unit
from tools._coverage.worker import Judge

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
    assert judge_together(found) == ""


@pytest.mark.usefixtures("_wrong_sine")
@pytest.mark.parametrize("differentiate", [False, True])
def test_a_wrong_module_among_right_ones_is_found(differentiate: bool) -> None:
    class Sine(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).sin()

    def case(module: torch.nn.Module) -> Case:
        return Case(module, (torch.randn(2, 3),), {}, differentiate, prepare=functools.partial(copy.deepcopy, module))

    right = [case(torch.nn.Linear(3, 2)), case(torch.nn.Softplus()), case(torch.nn.BatchNorm1d(3))]
    assert judge_together(right) == "N"
    assert judge_together([*right, case(Sine(3, 2))]) == ""


def test_cases_that_are_not_all_native_are_told_apart() -> None:
    x = torch.tensor([1.0, 2.0, -3.0])
    calls = [*([torch.sin] * 6), torch.linalg.eigvals, *([torch.exp] * 5)]
    numbered = [(n, Case(call, (torch.eye(3) if call is torch.linalg.eigvals else x + n,), {})) for n, call in enumerate(calls)]
    numbered += [(12, Case(lambda t: t.view(3), (x,), {})), (13, Case(lambda t: t[1:], (x,), {}))]
    numbered += [(14, Case(torch.nn.functional.dropout, (torch.ones(64),), {}))]
    said: list[dict[str, Any]] = []
    Judge(said.append, "host").batch(numbered)
    letters = {m["case"]: m["letter"] for m in said if "case" in m}
    assert "".join(letters[n] for n in range(15)) == "NNNNNNHNNNNN--N"
    assert max(len(m["start"]) for m in said[1:] if "start" in m) == 12


def test_verdicts() -> None:
    x = torch.tensor([1.0, 2.0, -3.0])
    assert judge(Case(torch.sin, (x,), {})).letter == "N"
    assert judge(Case(lambda t: t.view(3), (x,), {})).letter == "-"
    assert judge(Case(torch.linalg.eigvals, (torch.eye(3),), {})).letter == "H"
    assert judge(Case(torch.equal, (x, x), {})).letter == "B"
    assert judge(Case(torch.add, (x, torch.ones(2)), {})).letter == "X"
    random = judge(Case(torch.nn.functional.dropout, (torch.ones(64),), {}))
    assert (random.letter, random.detail) == ("N", "random")


def test_draws_that_happen_to_agree_are_random_all_the_same() -> None:
    def rarely(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.rand(1) < 0.63, x, 0.0)  # alike for seeds 0, 7 and 8

    assert [judge(Case(call, (torch.ones(2),), {})).detail for call in (rarely, torch.sin)] == ["random", ""]


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
