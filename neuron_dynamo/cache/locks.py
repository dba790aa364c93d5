"""FileLock: a lock that the kernel gives back when its owner dies, with a heartbeat by which others see that the owner still works.

The lock is flock's on a file outside of what it protects, so none can be stale: a file that a dead owner left is locked by nobody.
Whoever releases a lock removes the file; whoever gets one looks whether the file is still the one under that name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
import weakref
from pathlib import Path

HEARTBEAT = 1.0
"""Seconds between two signs of life of an owner."""

PATIENCE = 60.0
"""Seconds on the waiter's own clock without a sign of life after which it waits no longer."""

_SHORTEST_POLL, _LONGEST_POLL = 0.002, 0.5


class LocksUnavailable(OSError):
    """The file system under the lock's path has no locks."""


class Stalled(Exception):
    """The owner of a lock lives, but has shown no sign of life for as long as the waiter had patience; the text names the owner."""


class FileLock:
    """A lock on `path` that this object holds until `release`, or until the process dies. Threads exclude each other too.

    The lock belongs to the process that took it: a child made by fork neither holds nor releases it.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._sign = time.time_ns()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        _held.add(self)

    @staticmethod
    def take(path: Path) -> FileLock | None:
        """The lock, or None where another holds it. Makes the file, not its folder.

        Raises LocksUnavailable where the file system has no locks, and other OSErrors where the file cannot be made.
        """
        while True:
            descriptor = _open(path)
            try:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(descriptor)
                    return None
                except OSError as error:
                    raise LocksUnavailable(error.errno, f"locks do not work here: {error.strerror}", str(path)) from error
                if _is_file_of(path, descriptor):
                    with contextlib.suppress(OSError):  # on a full disk a lock without a name is as good
                        os.ftruncate(descriptor, 0)
                        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                    return FileLock(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # another removed it when it was done

    @staticmethod
    def is_held(path: Path) -> bool:
        """Whether somebody holds the lock now, for all that can be known without writing anything. Raises OSError, LocksUnavailable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise LocksUnavailable(error.errno, f"locks do not work here: {error.strerror}", str(path)) from error
        finally:
            os.close(descriptor)
        return False

    def beat(self) -> None:
        """Show a sign of life: the file's time of change counts on by a second, whatever the clocks of this machine and the server say."""
        self._sign += 10**9
        with contextlib.suppress(OSError):
            try:
                os.utime(self._descriptor, ns=(self._sign, self._sign))
            except PermissionError:  # another user's file
                os.utime(self._descriptor)

    def keep_beating(self, interval: float = HEARTBEAT) -> None:
        """Show one in every `interval` seconds from a thread, until the release."""

        def run() -> None:
            while not self._stop.wait(interval):
                self.beat()

        thread = threading.Thread(target=run, name="neuron_dynamo-heartbeat", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads: others may lose patience, which costs them a compile
            thread.start()
            self._thread = thread

    def release(self) -> None:
        """Give the lock back and remove its file. Never raises; does nothing in a child made by fork."""
        if self._descriptor < 0:
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            if _is_file_of(self._path, descriptor):
                os.unlink(self._path)
        os.close(descriptor)

    def _forget(self) -> None:
        """Close the copy that a fork made of the descriptor: it would keep the lock when the owner is dead."""
        self._descriptor, descriptor = -1, self._descriptor
        if descriptor >= 0:
            os.close(descriptor)


def wait_for(path: Path, patience: float = PATIENCE) -> FileLock:
    """The lock, once whoever has it is done or dead.

    However long an owner works it is waited for while it shows signs of life; those are compared with each other, never with a clock.
    Raises Stalled after `patience` seconds of this process's own time without one, LocksUnavailable, and OSError.
    """
    start = seen_at = time.monotonic()
    seen: tuple[int, int] | None = None
    while True:
        lock = FileLock.take(path)
        if lock is not None:
            return lock
        now = time.monotonic()
        sign = _sign_of_life(path)
        if sign != seen:
            seen, seen_at = sign, now
        elif now - seen_at > patience:
            raise Stalled(_owner(path))
        time.sleep(min(_LONGEST_POLL, max(_SHORTEST_POLL, (now - start) / 20)))


def remove_if_free(path: Path) -> bool:
    """Remove the file of a lock that nobody holds, which is what a dead owner leaves. False where somebody may hold it."""
    try:
        lock = FileLock.take(path)
    except OSError:
        return False
    if lock is None:
        return False
    lock.release()
    return True


def _open(path: Path) -> int:
    flags = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR, 0o664)
    except PermissionError as error:
        try:  # another user's file can be locked all the same
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            raise error from None


def _is_file_of(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign_of_life(path: Path) -> tuple[int, int] | None:
    try:
        # Through a fresh descriptor: a network file system then asks its server.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        return status.st_ino, status.st_mtime_ns
    finally:
        os.close(descriptor)


def _owner(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes()[:200].decode(errors="replace").strip() or "an unknown process"
    return "an unknown process"


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_held):
        lock._forget()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
