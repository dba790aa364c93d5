"""How a warm-up shows that it is at work: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from neuron_dynamo.cli.warmup import plan_line
from neuron_dynamo.warmup import Limits, Progress

if TYPE_CHECKING:
    from neuron_dynamo.warmup import Outcome, Plan


class Lines(Progress):
    """A line for each job and each compile."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._total, self._done = file, 0, 0

    def collecting(self, label: str) -> None:
        self.say(f"collecting the graphs of {label}")

    def planned(self, plan: Plan, limits: Limits) -> None:
        self._total = len(plan.items)
        self.say(plan_line(plan, limits.workers))

    def finished(self, outcome: Outcome) -> None:
        self._done += 1
        reason = f": {outcome.message.partition(chr(10))[0]}" if outcome.status == "failed" else ""
        seconds = f" in {outcome.seconds:.1f} s" if outcome.status == "compiled" else ""
        self.say(f"[{self._done}/{self._total}] {outcome.item.name} {outcome.status}{seconds}{reason}")

    def say(self, text: str) -> None:
        print(text, file=self._file, flush=True)


class Bar(Lines):
    """A bar of compiles; only failures leave a line."""

    def __init__(self, file: TextIO, display: Any) -> None:
        super().__init__(file)
        self._display, self._task = display, None

    def say(self, text: str) -> None:
        self._display.console.print(text, markup=False)

    def planned(self, plan: Plan, limits: Limits) -> None:
        super().planned(plan, limits)
        self._task = self._display.add_task("compiling", total=len(plan.items))

    def finished(self, outcome: Outcome) -> None:
        if outcome.status == "failed":
            super().finished(outcome)
        self._display.advance(self._task)


@contextlib.contextmanager
def progress_on(file: TextIO) -> Iterator[Progress]:
    """What suits `file`."""
    if not file.isatty():
        yield Lines(file)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Display

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Display(*columns, console=Console(file=file), transient=True) as display:
        yield Bar(file, display)
