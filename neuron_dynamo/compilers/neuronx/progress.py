"""Telling that a compile goes on: a live line on a terminal, plain lines elsewhere, nothing for the first two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

_QUIET = 2.0
_EVERY = 60.0


class Progress:
    """Context of one compile that `label` names; `update` is called with the seconds that it has taken so far."""

    def __init__(self, label: str) -> None:
        self._label, self._next, self._seconds = label, _QUIET, 0.0
        self._status: Any = None
        self._start = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def wait(self) -> None:
        """Show that the compile has not begun, for other ones run."""
        self.update(time.monotonic() - self._start, "waiting for other compiles")

    def update(self, seconds: float, note: str = "compiling") -> None:
        """Show the time, and what it goes into."""
        self._seconds = seconds
        if seconds < self._next:
            return
        text = f"{self._label}: {note}, {seconds:.0f} s"
        if sys.stderr.isatty():
            self._next = seconds + 0.2
            if self._status is None:
                self._status = _live(text)
            if self._status is not None:
                self._status.update(text)
                return
        self._next = seconds + _EVERY
        print(f"neuron_dynamo: {text}", file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
        if self._seconds >= _QUIET:
            how = "done" if kind is None else "failed"
            print(f"neuron_dynamo: {self._label}: {how} after {self._seconds:.0f} s", file=sys.stderr, flush=True)


def _live(text: str) -> Any:
    """A running spinner, or None where another one is on the screen."""
    from rich.console import Console
    from rich.errors import LiveError

    status = Console(stderr=True).status(text)
    try:
        status.start()
    except LiveError:
        return None
    return status
