"""Single flight: of all threads and processes that want the same thing made, one makes it while the others wait."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


class _Flight:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


_guard = threading.Lock()
_flights: dict[tuple[str, ...], _Flight] = {}


@contextlib.contextmanager
def one_thread(*name: str) -> Iterator[None]:
    """Let one thread of this process at a time into the block of this `name`. Not to be nested for one name."""
    with _guard:
        flight = _flights.setdefault(name, _Flight())
        flight.users += 1
    try:
        with flight.lock:
            yield
    finally:
        with _guard:
            flight.users -= 1
            if not flight.users and _flights.get(name) is flight:
                del _flights[name]


def _after_fork() -> None:
    """Threads of the parent, and what they had locked, are not in the child."""
    global _guard
    _guard = threading.Lock()
    _flights.clear()


os.register_at_fork(after_in_child=_after_fork)
