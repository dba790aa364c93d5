"""The summary as JSON and as JUnit XML that a CI system reads."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

from neuron_dynamo.warmup.summary import Outcome, Run, Summary
from tests.warmup.items import item


def test_json_and_junit(tmp_path: Path) -> None:
    shared = replace(item(tmp_path, "rank 0: g"), graphs=("rank 0: g", "rank 1: g"))
    message = "NCC_EVRF001: no <sort> & no\x1b[31m scatter\nsecond line"
    outcomes = (
        Outcome(item(tmp_path, "h", level="disk"), "hit"),
        Outcome(shared, "failed", message, 2.5, 1),
        Outcome(item(tmp_path, "c"), "compiled", "", 1.25, 2),
    )
    summary = Summary((Run("train.py", 3.0), Run("eval.py", 1.0, "it ended with exit code 3: boom")), outcomes, 9.0)
    assert not summary.ok and [summary.count(s) for s in ("hit", "compiled", "failed")] == [1, 1, 1]
    data = json.loads(json.dumps(summary.to_json()))
    assert data["outcomes"][1]["message"] == message and data["runs"][1]["failure"].endswith("boom")
    assert (data["ok"], data["failed"], data["outcomes"][2]["attempts"]) == (False, 1, 2)

    suite = ET.fromstring(summary.junit())
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "6",
        "failures": "3",
        "errors": "0",
        "skipped": "0",
        "time": "9.000",
    }
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == ["train.py", "eval.py", "h", "rank 0: g", "rank 1: g", "c"]
    failure = cases["rank 1: g"].find("failure")
    assert failure is not None and failure.get("message") == "NCC_EVRF001: no <sort> & no\ufffd[31m scatter"
    assert failure.text is not None and failure.text.endswith("second line")
    assert cases["c"].get("time") == "1.250" and cases["c"].findtext("system-out", "").startswith("compiled ")


def test_ok(tmp_path: Path) -> None:
    assert Summary((Run("a", 1.0),), (Outcome(item(tmp_path, "h"), "hit"),), 1.0).ok
    assert not Summary((Run("a", 1.0, "it ended with exit code 1"),), (), 1.0).ok
