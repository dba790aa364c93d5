"""Workers, and what becomes of a case whose worker dies or hangs."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools._coverage.verdicts import BROKEN, TOTAL, Unit

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120.0
STARTUP = 300.0
UNITS_PER_WORKER = 60
"""A worker is replaced after so many units: compiled code is never unloaded."""

Record = Callable[[Unit, int, dict[str, Any]], None]


class Worker:
    """One worker process and its unread output."""

    def __init__(self, scratch: Path) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONHASHSEED": "0",
            "NEURON_DYNAMO_CACHE": "off",
            "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        }
        self.log = (scratch / f"worker-{threading.get_ident()}.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools._coverage.worker"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        assert self.process.stdout is not None
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        self.pending = b""
        self.lines: list[bytes] = []
        self.read(STARTUP)

    def send(self, job: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()

    def read(self, timeout: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError, or EOFError if the process is gone."""
        assert self.process.stdout is not None
        while not self.lines:
            if not self.selector.select(timeout):
                raise TimeoutError
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise EOFError
            *whole, self.pending = (self.pending + data).split(b"\n")
            self.lines += whole
        return dict(json.loads(self.lines.pop(0)))

    def kill(self) -> str:
        """End the process; returns how it ended."""
        self.process.kill()
        code = self.process.wait()
        self.log.close()
        return f"signal {-code}" if code < 0 else f"exit status {code}"

    def ended(self) -> str:
        """How a process that is gone ended by itself."""
        code = self.process.wait()
        self.log.close()
        return f"signal {-code}" if code < 0 else f"exit status {code}"


Job = tuple[Unit, "list[int] | None", "set[int]"]
"""A unit, its cases that are wanted (None: all) and those that are done."""


def run(
    jobs: list[Job], record: Record, processes: int, scratch: Path, batch: int, told: Callable[[str], None], target: str = "host"
) -> None:
    """Judge every job on `processes` workers; for a target other than the host, cases are only lowered.

    `record(unit, case, verdict)` is called under a lock; `told` hears of progress."""
    todo: queue.Queue[Job] = queue.Queue()
    for job in jobs:
        todo.put(job)
    lock = threading.Lock()

    def locked(unit: Unit, number: int, verdict: dict[str, Any]) -> None:
        with lock:
            record(unit, number, verdict)

    def serve() -> None:
        worker, served = None, 0
        with contextlib.suppress(queue.Empty):
            while True:
                unit, only, done = todo.get_nowait()
                if worker is not None and served >= UNITS_PER_WORKER:
                    worker.kill()
                    worker, served = None, 0
                worker = _one(worker, unit, only, done, locked, scratch, batch, target)
                served += 1
                told(f"{todo.qsize()} units to go, {unit} done")
        if worker is not None:
            worker.kill()

    threads = [threading.Thread(target=serve) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _one(
    worker: Worker | None, unit: Unit, only: list[int] | None, done: set[int], record: Record, scratch: Path, batch: int, target: str
) -> Worker:
    """Judge one unit, with new workers after crashes and hangs."""
    done = set(done)
    while True:
        if worker is None:
            worker = Worker(scratch)
        key = [unit.database, unit.name, unit.dtype, unit.direction]
        worker.send({"unit": key, "done": sorted(done), "only": only, "batch": batch, "target": target})
        started: list[int] = []
        try:
            while True:
                message = worker.read(TIMEOUT)
                if "start" in message:
                    started = message["start"]
                elif "case" in message:
                    number = message.pop("case")
                    done.add(number)
                    record(unit, number, message)
                elif "total" in message:
                    record(unit, TOTAL, message)
                elif "broken" in message:
                    record(unit, BROKEN, {"letter": "X", "detail": f"the database itself fails: {message['broken']}"})
                elif "end" in message:
                    return worker
        except TimeoutError:
            letter, detail = "T", f"no answer for {TIMEOUT:.0f} s"
            worker.kill()
        except EOFError:
            letter, detail = "C", worker.ended()
        worker = None
        if not started:
            record(unit, BROKEN, {"letter": letter, "detail": f"while samples were made: {detail}"})
            return Worker(scratch)
        if len(started) == 1:
            record(unit, started[0], {"letter": letter, "detail": detail})
            done.add(started[0])
        else:
            batch = 1
