"""Compile on this machine: worker processes under one bound on their memory."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuron_dynamo.warmup.planning import Item, longest_first
from neuron_dynamo.warmup.process import WorkerProcess
from neuron_dynamo.warmup.protocol import Done
from neuron_dynamo.warmup.summary import Outcome
from neuron_dynamo.warmup.worker import Task

_ATTEMPTS = 2
_WATCH_SECONDS = 0.2


def default_jobs() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))


def default_memory() -> int:
    """Four fifths of the bytes that are free now, on this machine and in this control group."""
    free = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        free += [int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(min(free, default=4 * 2**30) * 4 // 5, 2**30)


@dataclass
class _Work:
    """An item on its way: how often it was tried, and whether it is to be tried with nothing beside it."""

    item: Item
    attempts: int = 0
    alone: bool = False


class _Schedule:
    """Which work may start now: what all running work is estimated to take stays below `memory`, but one may always run."""

    def __init__(self, items: Sequence[Item], memory: int) -> None:
        self._pending = [_Work(item) for item in longest_first(items)]
        self._running: list[_Work] = []
        self._memory = memory
        self._changed = threading.Condition()
        self._stopped = False

    def take(self) -> _Work | None:
        """The next work, as soon as there is room for it; None once all is done."""
        with self._changed:
            while True:
                if self._stopped or not (self._pending or self._running):
                    self._changed.notify_all()
                    return None
                work = next((work for work in self._pending if self._fits(work)), None)
                if work is not None:
                    self._pending.remove(work)
                    self._running.append(work)
                    work.attempts += 1
                    return work
                self._changed.wait()

    def _fits(self, work: _Work) -> bool:
        if not self._running:
            return True
        if work.alone or any(other.alone for other in self._running):
            return False
        return sum(other.item.memory for other in self._running) + work.item.memory <= self._memory

    def finish(self, work: _Work, again: bool) -> None:
        with self._changed:
            self._running.remove(work)
            if again:
                work.alone = True
                self._pending.append(work)
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class _Slot:
    """One place for a worker process; it takes work until none is left."""

    def __init__(self, schedule: _Schedule, limit: int, results: queue.SimpleQueue[Outcome]) -> None:
        self.thread = threading.Thread(target=self._work, daemon=True)
        self._schedule, self._limit, self._results = schedule, limit, results
        self._worker: WorkerProcess | None = None
        self._started: float | None = None
        self._stopped = False
        self._guard = threading.Lock()

    def _work(self) -> None:
        while (work := self._schedule.take()) is not None:
            done = self._attempt(work)
            again = done.status == "failed" and done.transient and work.attempts < _ATTEMPTS
            if not again:
                self._results.put(Outcome(work.item, done.status, done.message, done.seconds, work.attempts))
            self._schedule.finish(work, again)
        self.end("")

    def _attempt(self, work: _Work) -> Done:
        try:
            task = Task(work.item.name, work.item.key, work.item.options, work.item.wanted.program())
            with self._guard:
                if self._stopped:
                    return Done("failed", "the warm-up was stopped")
                if self._worker is None or not self._worker.alive:
                    self._close()
                    self._worker = WorkerProcess(self._limit)
                worker, self._started = self._worker, time.monotonic()
        except OSError as error:
            return Done("failed", f"{type(error).__name__}: {error}", transient=True)
        try:
            return worker.compile(task.to_json())
        finally:
            with self._guard:
                self._started = None

    def look(self) -> tuple[int, float | None]:
        """Bytes that the worker holds, and the seconds that it has been at its task, None if it has none."""
        with self._guard:
            seconds = None if self._started is None else time.monotonic() - self._started
            return (self._worker.resident() if self._worker else 0), seconds

    def end(self, reason: str) -> None:
        """End the worker: one that is idle at once, one at work with `reason` for its task's failure."""
        with self._guard:
            if self._worker is not None and self._started is not None:
                self._worker.kill(reason)
            else:
                self._close()

    def stop(self) -> None:
        """End the worker, and start none again."""
        with self._guard:
            self._stopped = True
        self.end("the warm-up was stopped")

    def _close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def compile_locally(items: Sequence[Item], jobs: int, memory: int, timeout: float | None = None) -> Iterator[Outcome]:
    """Compile `items` in at most `jobs` processes that together hold at most `memory` bytes; yields each outcome as it comes.

    A transient failure (the compiler was killed, ran out of memory, or took more than `timeout` seconds) is tried once more, with nothing
    running beside it. Closing the iterator ends every worker.
    """
    schedule = _Schedule(items, memory)
    results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    slots = [_Slot(schedule, memory, results) for _ in range(min(jobs, len(items)))]
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(slots, memory, timeout, over), daemon=True)
    threads = [*(slot.thread for slot in slots), watcher]
    try:
        for thread in threads:
            thread.start()
        for _ in items:
            yield results.get()
    finally:
        schedule.stop()
        over.set()
        for slot in slots:
            slot.stop()
        for thread in threads:
            thread.join()


def _watch(slots: Sequence[_Slot], memory: int, timeout: float | None, over: threading.Event) -> None:
    while not over.wait(_WATCH_SECONDS):
        held = [(slot, *slot.look()) for slot in slots]
        for slot, _, seconds in held:
            if timeout is not None and seconds is not None and seconds > timeout:
                slot.end(f"the compile took more than {timeout:g} seconds")
        total = sum(resident for _, resident, _ in held)
        if total > memory:
            # An idle worker can go at no loss; else the largest is the one that has outgrown its estimate.
            slot, resident, _ = max(held, key=lambda entry: (entry[2] is None and entry[1] > 0, entry[1]))
            held_by_all = f"the compiling processes held {total >> 20} MB, this one {resident >> 20} MB"
            slot.end(f"{held_by_all}; no more than {memory >> 20} MB are allowed")
