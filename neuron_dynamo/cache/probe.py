"""An entry can be intact and still kill the process that loads it (SIGBUS, SIGSEGV, abort): such a one kills at most one process.

Before an entry is loaded, `<root>/loading/<digest>.<12 hex>` is made and locked; afterwards it is removed. One that nobody holds any
more was left by a process that died while loading (or was killed at that moment), and then the entry is tried in another process first.
So is an entry that comes from the remote: on a machine whose directory does not outlive it, each start would be the first. What dies in
the probe is put aside, and the graph is compiled again.

The probe does what is dangerous about loading and no more (`Probed`); it imports neither torch nor Torch-MLIR, and one process serves
any number of entries. It is no sandbox: it guards against accidents, not against an entry that was made to do harm.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from neuron_dynamo.cache.layout import make_folder
from neuron_dynamo.cache.locks import FileLock, remove_if_free

LOADING = "loading"
"""Folder of a cache directory that holds the marks of entries being loaded."""

PATIENCE = 300.0
"""Seconds without an answer after which the probe has hung, which is no better than dying."""

IDLE = 20.0
"""Seconds for which a probe stays for further entries."""

_FATAL = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}

_CHILD = """
import importlib, struct, sys
requests, answers = sys.stdin.buffer, sys.stdout.buffer
module, _, function = sys.argv[1].partition(":")
load = getattr(importlib.import_module(module), function)
answers.write(b"r"); answers.flush()
while header := requests.read(8):
    data = requests.read(struct.unpack("<Q", header)[0])
    try:
        load(data)
        answers.write(b"y")
    except Exception:
        answers.write(b"n")
    answers.flush()
"""


@runtime_checkable
class Probed(Protocol):
    """A compiler whose `load` has a dangerous part that another process can try."""

    def dangerous_part(self, artifact: bytes) -> tuple[str, bytes] | None:
        """A function (`module:function`, of a module that is quick to import) and the bytes to give it; None where nothing is to be tried.

        The function raises an ordinary exception where `load` would raise.
        """
        ...


def survives(loader: str, data: bytes) -> bool:
    """Whether a process that calls `loader` with `data` lives on, returning or raising. True too where nothing can be found out."""
    global _idle
    with _lock:
        if _idle is not None:
            _idle.cancel()
        probe = _probe_of(loader)
        survived = probe is None or probe.survives(data)
        _idle = threading.Timer(IDLE, _close_all)
        _idle.daemon = True
        _idle.start()
        return survived


@contextlib.contextmanager
def marked(root: Path, digest: str) -> Iterator[None]:
    """The entry counts as being loaded within the block. Does nothing where `root` cannot be written."""
    mark: FileLock | None = None
    path = root / LOADING / f"{digest}.{uuid.uuid4().hex[:12]}"
    try:
        make_folder(root, path.parent)
        mark = FileLock.take(path)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()  # without locks, a mark would accuse the living
    try:
        yield
    finally:
        if mark is not None:
            mark.release()


def has_killed(root: Path, digest: str) -> bool:
    """Whether a process has died while it loaded the entry. Never raises."""
    return any(_left_behind(mark) for mark in _marks(root, digest))


def forgive(root: Path, digest: str) -> None:
    """Forget the dead: the entry has been tried since, or is gone."""
    for mark in _marks(root, digest):
        remove_if_free(mark)


def _marks(root: Path, digest: str) -> list[Path]:
    try:
        return [root / LOADING / name for name in os.listdir(root / LOADING) if name.startswith(f"{digest}.")]
    except OSError:
        return []


def _left_behind(mark: Path) -> bool:
    try:
        return not FileLock.is_held(mark)
    except OSError:
        return False


class _Probe:
    """A process that calls one function with what it is sent."""

    def __init__(self, loader: str) -> None:
        # Other variables of this process may be meant for one process, not two (profilers, ports); PYTHONPATH is how it finds its modules.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, loader],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=0,
        )
        self.ready = self._answer() == b"r"
        if not self.ready:
            self.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def survives(self, data: bytes) -> bool:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it says why by how it died
            self._send(struct.pack("<Q", len(data)))
            self._send(data)
        answer = self._answer()
        if answer:
            return True
        self.close()
        # Memory may have run out, or somebody killed it: that says nothing about the entry. All else is what would happen here too.
        return answer is not None and self._process.returncode < 0 and -self._process.returncode not in _FATAL

    def close(self) -> None:
        """End the process, if it has not ended itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _answer(self) -> bytes | None:
        """One byte of it; b"" where the process ended, None where it hangs."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return self._process.stdout.read(1) if selector.select(PATIENCE) else None

    def let_go(self) -> None:
        """Close what a fork has copied of the pipes; the process is the parent's."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.returncode = 0  # not ours to wait for


_lock = threading.Lock()
_probes: dict[str, _Probe] = {}
_idle: threading.Timer | None = None


def _probe_of(loader: str) -> _Probe | None:
    probe = _probes.get(loader)
    if probe is None or not probe.alive:
        try:
            probe = _Probe(loader)
        except (OSError, TypeError):  # no interpreter that could be started, or none known
            return None
        if not probe.ready:
            return None
        _probes[loader] = probe
    return probe


def _close_all() -> None:
    with _lock:
        while _probes:
            _probes.popitem()[1].close()


def _after_fork() -> None:
    global _lock, _idle
    _lock, _idle = threading.Lock(), None
    while _probes:
        _probes.popitem()[1].let_go()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
