"""How many compilers run at once on this machine: one run may take tens of gigabytes, and the kernel kills what does not fit."""

from __future__ import annotations

import fcntl
import getpass
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = 16 * 2**30
"""Bytes that one run is reckoned to take."""
_CPUS = 2
_POLL = 0.2


def jobs(given: int | None) -> int:
    """`given`, or what this machine's memory and CPUs allow; at least 1."""
    if given is not None:
        return given
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(memory // MEMORY, (os.cpu_count() or 1) // _CPUS))


def folder() -> Path:
    """Where this user's locks lie, machine-wide."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / f"neuron_dynamo_compiles_{user}"


@contextmanager
def slot(count: int, root: Path | None = None, waiting: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Hold one of `count` slots, shared with every process of this user, for the length of the block; yields its number.

    Calls `waiting` between tries. A slot is a file lock, which the kernel frees when its holder dies; where files cannot be locked there
    is no limit, and the number is -1.
    """
    root = folder() if root is None else root
    while True:
        try:
            handle, number = _take(root, count)
        except OSError:
            handle, number = None, -1
        if number is not None:
            break
        waiting()
        time.sleep(_POLL)
    try:
        yield number
    finally:
        if handle is not None:
            os.close(handle)


def _take(root: Path, count: int) -> tuple[int | None, int | None]:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(count):
        handle = os.open(root / f"slot{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
        except BaseException:
            os.close(handle)
            raise
        else:
            return handle, number
    return None, None
