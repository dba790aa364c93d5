"""The table that the repository keeps: docs/op_coverage.json, and docs/op_coverage.md made from it.

The JSON holds for each unit the verdict letters of its cases, run-length coded ("N22 P2 W1"), and the ops at fault. All else is derived.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from tools._coverage.verdicts import DATABASES, DTYPES, FAULTS, TOTAL, VERDICTS, Unit

NOT_MEASURED = "?"
DOCS = Path(__file__).resolve().parents[2] / "docs"


def paths(target: str = "host") -> tuple[Path, Path]:
    """Where the table of a target is kept: its JSON, and the readable form."""
    stem = "op_coverage" if target == "host" else f"op_coverage_{target}"
    return DOCS / f"{stem}.json", DOCS / f"{stem}.md"


JSON, MARKDOWN = paths()


class Results:
    """Verdicts by unit and case, kept as they come in a file of JSON lines, so that a run can be broken off and taken up again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.verdicts: dict[Unit, dict[int, dict[str, Any]]] = defaultdict(dict)
        if path.exists():
            for line in path.read_text().splitlines():
                *unit, number, verdict = json.loads(line)
                self.verdicts[Unit(*unit)][number] = verdict
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a", buffering=1)

    def record(self, unit: Unit, number: int, verdict: dict[str, Any]) -> None:
        self.verdicts[unit][number] = verdict
        self.file.write(json.dumps([unit.database, unit.name, unit.dtype, unit.direction, number, verdict]) + "\n")

    def complete(self, unit: Unit, wanted: list[int] | None) -> bool:
        """Whether there is nothing left to judge of a unit, or of its `wanted` cases."""
        found = self.verdicts[unit]
        if TOTAL not in found:
            return False
        every = range(found[TOTAL]["total"])
        return all(number in found for number in (every if wanted is None else set(wanted) & set(every)))

    def forget(self, units: Iterable[Unit], letters: str) -> None:
        """Drop the verdicts of these units that are among `letters`, to be judged again."""
        for unit in units:
            for number in [n for n, v in self.verdicts[unit].items() if v.get("letter", "#") in letters]:
                del self.verdicts[unit][number]


def encode(letters: list[str]) -> str:
    """["N", "N", "P"] -> "N2 P1"."""
    runs: list[tuple[str, int]] = []
    for letter in letters:
        if runs and runs[-1][0] == letter:
            runs[-1] = (letter, runs[-1][1] + 1)
        else:
            runs.append((letter, 1))
    return " ".join(f"{letter}{count}" for letter, count in runs)


def decode(text: str) -> list[str]:
    """The inverse of encode."""
    return [letter for letter, count in re.findall(r"(\D)(\d+)", text) for _ in range(int(count))]


def to_table(results: dict[Unit, dict[int, dict[str, Any]]]) -> dict[str, Any]:
    """What the repository keeps of results."""
    cases, ops = {}, {}
    for unit in sorted(results):
        found = {n: v for n, v in results[unit].items() if n >= 0}
        if not found:
            continue
        size = results[unit].get(TOTAL, {}).get("total", max(found) + 1)
        cases[str(unit)] = encode([found[n]["letter"] if n in found else NOT_MEASURED for n in range(size)])
        blamed = Counter(op for v in found.values() if v["letter"] in "PHR" for op in v.get("ops", ()))
        if blamed:
            ops[str(unit)] = dict(blamed.most_common())
    seconds = [v["seconds"] for found in results.values() for v in found.values() if v.get("seconds") and v["letter"] == "N"]
    return {"cases": cases, "host_ops": ops, "median_first_call_seconds": round(median(seconds), 3) if seconds else None}


def merged(stored: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The stored table with what was measured since: a case that `made` does not have keeps its letter, its unit the ops at fault."""
    cases, ops = dict(stored["cases"]), dict(stored["host_ops"])
    for unit, runs in made["cases"].items():
        fresh, known = decode(runs), decode(cases.get(unit, ""))
        whole = NOT_MEASURED not in fresh or len(known) != len(fresh)
        letters = fresh if whole else [b if a == NOT_MEASURED else a for a, b in zip(fresh, known, strict=True)]
        cases[unit] = encode(letters)
        blamed = dict(made["host_ops"].get(unit, {}))
        if not whole and set(letters) & set("PHR"):
            blamed = {**ops.get(unit, {}), **blamed}
        ops.pop(unit, None)
        if blamed:
            ops[unit] = blamed
    # The median is of a run over many ops: one over a few of them, perhaps beside other work, says nothing of it.
    fewer = len(made["cases"]) < len(stored["cases"])
    first, other = (stored, made) if fewer else (made, stored)
    seconds = first["median_first_call_seconds"] or other["median_first_call_seconds"]
    return {"cases": dict(sorted(cases.items())), "host_ops": dict(sorted(ops.items())), "median_first_call_seconds": seconds}


def check(table: dict[str, Any], unit: Unit, number: int, verdict: dict[str, Any]) -> str:
    """How a verdict contradicts the table; '' if it does not."""
    letters = decode(table["cases"].get(str(unit), ""))
    stored = letters[number] if 0 <= number < len(letters) else NOT_MEASURED
    if verdict["letter"] == stored or (stored == NOT_MEASURED and verdict["letter"] not in FAULTS):
        return ""
    why = f"{verdict.get('detail', '')} {'; '.join(verdict.get('ops', ()))}"
    return f"{unit} case {number} is {verdict['letter']}, the table says {stored}. {why}"


def share(letters: Counter[str]) -> tuple[int, int]:
    """(native cases, cases that PyTorch traces whole and that compute something)."""
    return letters["N"], sum(letters[k] for k in "NPH" + FAULTS)


def markdown(table: dict[str, Any], target: str = "host") -> str:
    """The readable form: a summary, then every op that is not native throughout, with the reason."""
    how = "Host target" if target == "host" else f"Lowered for {target} and judged by preflight, not run"
    option = "" if target == "host" else f" --target {target}"
    lines = [
        "# Op coverage",
        "",
        f"Made by `./tools/op_coverage{option} --write`; do not edit. {how}; nothing here ran on a Trainium device. Where it says so many",
        "cases of so many, the rest was not measured, and ops and dtypes that are missing were not either. `--first N` or `--all`",
        "measures; what the results file of a checkout holds then joins the table, and the rest of it stays.",
        "Letters: " + "; ".join(f"**{letter}** {text}" for letter, text in VERDICTS.items()) + ".",
        "",
        *summary(table),
        "",
        "## Ops that are not native throughout",
        "",
        "| op | dtype, direction | cases | on the host, or why not |",
        "|---|---|---|---|",
    ]
    for key, runs in table["cases"].items():
        letters = Counter(decode(runs))
        if set(letters) <= {"N", "-", "X", NOT_MEASURED}:
            continue
        database, name, dtype, direction = key.split("/")
        why = "; ".join(table["host_ops"].get(key, {})) or ", ".join(VERDICTS[k] for k in letters if k in "B" + FAULTS)
        cases = " ".join(f"{k}{n}" for k, n in letters.items() if k != NOT_MEASURED)
        lines.append(f"| {'' if database == 'op' else database + ': '}{name} | {dtype}, {direction} | {cases} | {why.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def groups(table: dict[str, Any]) -> dict[tuple[str, str, str], Counter[str]]:
    """Counts of letters by (database, dtype, direction), in their order."""
    found: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for key, runs in table["cases"].items():
        database, _, dtype, direction = key.split("/")
        found[database, dtype, direction].update(decode(runs))
    return dict(sorted(found.items(), key=lambda g: (DATABASES.index(g[0][0]), DTYPES.index(g[0][1]), g[0][2] == "backward")))


def measured(letters: Counter[str]) -> str:
    """Cases that were measured, "of" those that the database has where these are more."""
    all_of_them, missing = letters.total(), letters[NOT_MEASURED]
    return f"{all_of_them - missing} of {all_of_them}" if missing else f"{all_of_them}"


def percentage(letters: Counter[str]) -> str:
    """Share of native cases."""
    native, whole = share(letters)
    return f"{100 * native / whole:.1f}%" if whole else "-"


def summary(table: dict[str, Any]) -> list[str]:
    """Rows by database, dtype and direction, with every verdict."""
    lines = [
        "| database | dtype | direction | cases | " + " | ".join(VERDICTS) + " | native |",
        "|---|---|---|---" + "|---" * len(VERDICTS) + "|---|",
    ]
    for group, letters in groups(table).items():
        counts = " | ".join(str(letters[k]) for k in VERDICTS)
        lines.append(f"| {' | '.join(group)} | {measured(letters)} | {counts} | {percentage(letters)} |")
    return lines


def brief(table: dict[str, Any]) -> str:
    """README's form: cases, faults and the native share."""
    lines = ["| database | dtype | direction | cases | wrong, error, crash or hang | native |", "|---|---|---|---:|---:|---:|"]
    for group, letters in groups(table).items():
        faults = sum(letters[k] for k in FAULTS)
        lines.append(f"| {' | '.join(group)} | {measured(letters)} | {faults} | {percentage(letters)} |")
    return "\n".join(lines) + "\n"
