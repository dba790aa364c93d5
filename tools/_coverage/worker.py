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


Numbered = tuple[int, Any]


class Judge:
    """Judges the cases of a unit, of which many can be compiled as one graph, and says what it finds."""

    FAILURES = 4
    """So many graphs of one batch may fail to give the verdict of all their cases; what is left is then judged case by case."""

    def __init__(self, say: Any, target: str) -> None:
        self.say, self.target, self.failures = say, target, 0

    def batch(self, numbered: list[Numbered]) -> None:
        """Verdicts of all of them."""
        from tools._coverage.judge import kind

        self.failures = 0
        kinds: dict[str, list[Numbered]] = {}
        if len(numbered) > 1:
            self.say({"start": [number for number, _ in numbered]})
        for number, case in numbered:
            kinds.setdefault(kind(case, self.target == "host") if len(numbered) > 1 else "", []).append((number, case))
        for what, group in kinds.items():
            if what:
                self.group(group)
            else:
                for one in group:
                    self.alone(one)

    def group(self, group: list[Numbered]) -> None:
        """Verdicts of cases of one kind: together if they are all native, else the first alone and the rest in halves."""
        if len(group) > 1 and self.failures < self.FAILURES:
            if letter := self.together(group):
                for number, _ in group:
                    self.say({"case": number, "letter": letter})
                return
            self.failures += 1
        if group:
            first, rest = self.alone(group[0]), group[1:]
            middle = len(rest) // 2 if first == "N" else 0
            self.group(rest[:middle])
            self.group(rest[middle:])

    def together(self, group: list[Numbered]) -> str:
        """The one letter of all cases of a group, or ''."""
        from tools._coverage.judge import judge_together
        from tools._coverage.judge_target import judge_target_together

        self.say({"start": [number for number, _ in group]})
        cases = [case for _, case in group]
        return judge_together(cases) if self.target == "host" else judge_target_together(cases, self.target)

    def alone(self, one: Numbered) -> str:
        """The letter of one case, which is told."""
        from tools._coverage.judge import judge
        from tools._coverage.judge_target import judge_target

        number, case = one
        self.say({"start": [number]})
        try:
            verdict = (judge(case) if self.target == "host" else judge_target(case, self.target)).to_json()
        except Exception as error:  # of the judge: nothing is known of the case, so it is not right
            verdict = {"letter": "E", "detail": f"while it was judged: {type(error).__name__}: {error}"[:400]}
        self.say({"case": number, **verdict})
        return str(verdict["letter"])


def _unit(unit: Any, done: set[int], only: list[int] | None, batch: int, say: Any, target: str) -> None:
    from tools._coverage.cases import cases

    judge = Judge(say, target)
    todo: list[Numbered] = []
    total = 0
    first = unit.dtype == "float32"  # compiled alone, to know how long that takes
    for number, case in enumerate(cases(unit)):
        total = number + 1
        if number in done or (only is not None and number not in only):
            continue
        todo.append((number, case))
        if first or len(todo) >= batch:
            judge.batch(todo)
            todo, first = [], False
    judge.batch(todo)
    say({"total": total})


if __name__ == "__main__":
    main()
