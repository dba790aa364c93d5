"""Command line of ./tools/op_coverage."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from neuron_dynamo.target import TARGET_NAMES
from tools._coverage import pool, table
from tools._coverage.cases import cases, units
from tools._coverage.verdicts import DATABASES, DTYPES, FAULTS, VERDICTS, Unit


def arguments() -> argparse.Namespace:
    """Parsed command line."""
    parser = argparse.ArgumentParser(prog="./tools/op_coverage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="every case of the chosen units")
    what.add_argument("--sample", type=int, metavar="N", help="N cases drawn from the chosen units")
    what.add_argument("--first", type=int, metavar="N", help="the first N cases of each chosen unit")
    what.add_argument("--report", action="store_true", help="only tell what the results file holds")
    parser.add_argument("--seed", type=int, default=0, help="of --sample")
    parser.add_argument("--op", default="", help="regular expression that the whole entry name must match")
    parser.add_argument("--database", action="append", choices=DATABASES)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--direction", choices=("forward", "backward"))
    parser.add_argument("--target", default="host", choices=TARGET_NAMES, help="lower for this target only, and judge by preflight")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=12, help="cases of one unit that are first tried as one graph; 1: never")
    parser.add_argument(
        "--results", type=Path, default=Path("op-coverage/results.jsonl"), help="where verdicts are kept; a run goes on from there"
    )
    parser.add_argument(
        "--again", default="", metavar="LETTERS", help="judge again what the results file has with these verdicts, e.g. WECT"
    )
    parser.add_argument("--write", action="store_true", help="put what the results file holds into the table in docs/")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a verdict differs from the table in docs/")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every verdict that is not native")
    return parser.parse_args()


def chosen(given: argparse.Namespace) -> list[Unit]:
    """The units that the command line asks for."""
    found = units(tuple(given.database or DATABASES), tuple(given.dtype or DTYPES))
    return [u for u in found if (not given.op or re.fullmatch(given.op, u.name)) and given.direction in (None, u.direction)]


def sampled(wanted: list[Unit], count: int, seed: int) -> list[tuple[Unit, list[int]]]:
    """`count` units drawn with `seed`, one case each drawn among those that the table or else the database has."""
    draw = random.Random(seed)
    stored = json.loads(table.JSON.read_text())["cases"] if table.JSON.exists() else {}
    jobs = []
    for unit in draw.sample(wanted, min(count, len(wanted))):
        letters = table.decode(stored[str(unit)]) if str(unit) in stored else ["N"] * sum(1 for _ in cases(unit))
        if known := [number for number, letter in enumerate(letters) if letter != table.NOT_MEASURED]:
            jobs.append((unit, [draw.choice(known)]))
    return jobs


def main() -> int:
    """Run; 0 if no case is at fault (or, with --check, if the table is right)."""
    given = arguments()
    wanted = chosen(given)
    scratch = Path(tempfile.mkdtemp(prefix="op-coverage-"))
    results = table.Results(scratch / "results.jsonl" if given.sample else given.results)
    if given.again:
        results.forget(wanted, given.again)
    only: list[tuple[Unit, list[int] | None]] = []
    if given.sample:
        only = [*sampled(wanted, given.sample, given.seed)]
    elif not given.report:
        only = [(unit, list(range(given.first)) if given.first else None) for unit in wanted]
    start, shown = time.monotonic(), 0.0
    seen: list[tuple[Unit, int, dict[str, Any]]] = []

    def record(unit: Unit, number: int, verdict: dict[str, Any]) -> None:
        results.record(unit, number, verdict)
        if "letter" not in verdict:
            return
        seen.append((unit, number, verdict))
        if verdict["letter"] in FAULTS or (given.verbose and verdict["letter"] != "N"):
            line = f"{VERDICTS[verdict['letter']]}: {unit} case {number}: {verdict.get('detail', '')} {'; '.join(verdict.get('ops', ()))}"
            print(line, flush=True)

    def told(text: str) -> None:
        nonlocal shown
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"[{shown - start:5.0f} s] {text}; {dict(Counter(v['letter'] for *_, v in seen))}", file=sys.stderr, flush=True)

    jobs = [(unit, cases_, set(results.verdicts[unit])) for unit, cases_ in only if not results.complete(unit, cases_)]
    pool.run(jobs, record, given.processes, scratch, given.batch, told, given.target)
    known = {unit: results.verdicts[unit] for unit in wanted if results.verdicts[unit]}
    made = table.to_table(known)
    print("\n".join(table.summary(made)))
    print(f"median first call of a native case compiled alone: {made['median_first_call_seconds']} s")
    if given.write:
        table.DOCS.mkdir(exist_ok=True)
        kept, readable = table.paths(given.target)
        if kept.exists():
            made = table.merged(json.loads(kept.read_text()), made)
        kept.write_text(json.dumps(made, indent=0, sort_keys=True) + "\n")
        readable.write_text(table.markdown(made, given.target))
    if given.check:
        stored = json.loads(table.paths(given.target)[0].read_text())
        stale = [why for unit, number, verdict in seen if (why := table.check(stored, unit, number, verdict))]
        print("\n".join(stale) or f"{len(seen)} cases are as the table says")
        return int(bool(stale))
    return int(any(v["letter"] in FAULTS for *_, v in seen))


if __name__ == "__main__":
    sys.exit(main())
