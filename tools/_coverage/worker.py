"""A process that judges units. Each line of standard input is a job {"unit": [...], "done": [...], "only": [...] or null, "batch": k}.
Each line that it writes tells a case about to start or a verdict, so that whoever reads knows which case a crash or a hang belongs to."""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

MEMORY = 10 * 2**30


def main() -> None:
    """Read jobs until standard input ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what ops print must not mix with verdicts
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import torch

    torch.set_num_threads(1)
    import warnings

    warnings.simplefilter("ignore")
    from tools._coverage.verdicts import Unit

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")

    say({"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        try:
            _unit(Unit(*job["unit"]), set(job["done"]), job["only"], job["batch"], say, job["target"])
        except Exception as error:
            say({"broken": f"{type(error).__name__}: {error}"[:400]})
        say({"end": True})


def _unit(unit: Any, done: set[int], only: list[int] | None, batch: int, say: Any, target: str) -> None:
    from tools._coverage.cases import cases
    from tools._coverage.judge import judge, judge_together
    from tools._coverage.judge_target import judge_target, judge_target_together

    todo: list[tuple[int, Any]] = []
    total = 0

    def judged(case: Any) -> dict[str, Any]:
        try:
            return dict((judge(case) if target == "host" else judge_target(case, target)).to_json())
        except Exception as error:  # of the judge: nothing is known of the case, so it is not right
            return {"letter": "E", "detail": f"while it was judged: {type(error).__name__}: {error}"[:400]}

    def flush() -> None:
        if len(todo) > 1:
            say({"start": [number for number, _ in todo]})
            together = [case for _, case in todo]
            if judge_together(together) if target == "host" else judge_target_together(together, target):
                for number, _ in todo:
                    say({"case": number, "letter": "N"})
                todo.clear()
        for number, case in todo:
            say({"start": [number]})
            say({"case": number, **judged(case)})
        todo.clear()

    first = unit.dtype == "float32"  # compiled alone, to know how long that takes
    for number, case in enumerate(cases(unit)):
        total = number + 1
        if number in done or (only is not None and number not in only):
            continue
        todo.append((number, case))
        if first or len(todo) >= batch:
            flush()
            first = False
    flush()
    say({"total": total})


if __name__ == "__main__":
    main()
