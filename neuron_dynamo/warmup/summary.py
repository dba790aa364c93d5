"""What a warm-up did: one outcome for each artifact and each job that collects, as JSON and as JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

from neuron_dynamo.warmup.planning import Item


@dataclass(frozen=True)
class Outcome:
    """What became of one artifact. `status` is hit (it was there), compiled or failed; `seconds` those of the last attempt."""

    item: Item
    status: str
    message: str = ""
    seconds: float = 0.0
    attempts: int = 0

    def to_json(self) -> dict[str, Any]:
        item = self.item
        what = {"name": item.name, "kind": item.kind, "key": item.key.digest, "graphs": list(item.graphs)}
        return {**what, "status": self.status, "message": self.message, "seconds": self.seconds, "attempts": self.attempts}


@dataclass(frozen=True)
class Run:
    """One process that was run to collect graphs: its label, the seconds it took, and why it failed ("" if it did not)."""

    label: str
    seconds: float
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Summary:
    """Answer of a warm-up; `seconds` is the time of all of it."""

    runs: tuple[Run, ...]
    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every graph is warm: no job failed before it had shown all its graphs, and no compile failed."""
        return not any(run.failure for run in self.runs) and all(outcome.status != "failed" for outcome in self.outcomes)

    def count(self, status: str) -> int:
        return sum(outcome.status == status for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        counts = {status: self.count(status) for status in ("hit", "compiled", "failed")}
        lists = {"runs": [run.to_json() for run in self.runs], "outcomes": [outcome.to_json() for outcome in self.outcomes]}
        return {"ok": self.ok, **counts, "seconds": self.seconds, **lists}

    def junit(self) -> str:
        """JUnit XML: a test case for each process that collected, and for each graph, whose failure is the compiler's message."""
        suite = ET.Element("testsuite", name="neuron-dynamo warmup")
        for run in self.runs:
            _case(suite, "collect", run.label, run.seconds, run.failure)
        for outcome in self.outcomes:
            for graph in outcome.item.graphs:
                case = _case(suite, "graph", graph, outcome.seconds, outcome.message)
                ET.SubElement(case, "system-out").text = f"{outcome.status} {outcome.item.key.digest}"
        totals = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error", "skipped": "testcase/skipped"}
        for name, path in totals.items():
            suite.set(name, str(len(suite.findall(path))))
        suite.set("time", f"{self.seconds:.3f}")
        ET.indent(suite)
        return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, kind: str, name: str, seconds: float, failure: str) -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=f"neuron_dynamo.{kind}", name=_legal(name), time=f"{seconds:.3f}")
    if failure:
        text = _legal(failure)
        ET.SubElement(case, "failure", message=text.partition("\n")[0]).text = text
    return case


def _legal(text: str) -> str:
    """`text` without the control characters that XML has no way to write, which compilers' logs are full of."""
    return "".join(c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "\ufffd" for c in text)
