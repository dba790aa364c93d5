"""Running one program to its end, whatever it does: floods its streams, hangs, forks, dies."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK, _SHORT = 0.2, 0.02
_GRACE = 2.0
_DRAIN = 1.0
_HEAD, _TAIL = 2**20, 3 * 2**20


@dataclass(frozen=True)
class Finished:
    """How a run ended. `output` holds both streams in the order of arrival (the middle of a very long one left out); `returncode` is
    negative for a signal; `timed_out` says that we ended it."""

    returncode: int
    output: str
    seconds: float
    timed_out: bool = False


def run(
    command: Sequence[str], folder: Path, timeout: float | None = None, tick: Callable[[float], None] = lambda seconds: None
) -> Finished:
    """Run `command` in `folder` in a process group of its own; `tick` is called with the elapsed seconds several times a second.

    After `timeout` seconds, or where anything raises meanwhile (KeyboardInterrupt, say), the whole group is ended before this returns.
    Where this process itself is ended meanwhile, even by SIGKILL, the group is ended too.
    Raises OSError where the program cannot be started.
    """
    start = time.monotonic()
    child = subprocess.Popen(
        command, bufsize=0, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    assert child.stdout is not None
    output, timed_out, ended = _Output(), False, 0.0
    guard = _guard(child.pid)
    try:
        with selectors.DefaultSelector() as selector:
            stream = child.stdout.fileno()
            selector.register(stream, selectors.EVENT_READ)
            while True:
                elapsed = time.monotonic() - start
                tick(elapsed)
                if child.poll() is not None:
                    ended = ended or elapsed
                    # A grandchild may hold the streams open after the compiler's end.
                    if not selector.get_map() or elapsed - ended > _DRAIN:
                        break
                elif timeout is not None and elapsed > timeout:
                    timed_out = True
                    break
                if not selector.get_map():
                    time.sleep(_SHORT)
                elif selector.select(_TICK if not ended else _SHORT):
                    data = os.read(stream, 2**16)
                    output.add(data)
                    if not data:
                        selector.unregister(stream)
    finally:
        _end_group(child)
        child.stdout.close()
        if guard is not None:
            guard.kill()
            guard.communicate()
    return Finished(child.returncode, output.text(), time.monotonic() - start, timed_out)


def _guard(group: int) -> subprocess.Popen[bytes] | None:
    """A shell that ends the process group when this process ends: then its standard input does, of which only we have the other end."""
    script = f'read -r line; kill -s TERM -- "-$0"; sleep {_GRACE:g}; kill -s KILL -- "-$0"'
    command, null = ["/bin/sh", "-c", script, str(group)], subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)
    except OSError:  # no shell in this container: then nothing guards
        return None


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Ask every process of the group to end, then make it."""
    for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
        if child.poll() is not None and not _group_lives(child.pid):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class _Output:
    """The beginning and the end of a stream, in bounded memory."""

    def __init__(self) -> None:
        self._head, self._tail, self._dropped = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        room = _HEAD - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 2 * _TAIL:
            self._dropped += len(self._tail) - _TAIL
            del self._tail[:-_TAIL]

    def text(self) -> str:
        gap = f"\n... {self._dropped:,} bytes left out ...\n".encode() if self._dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode(errors="replace")
