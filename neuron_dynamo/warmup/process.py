"""WorkerProcess: the owner's side of a process that compiles (worker.py)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

from neuron_dynamo.warmup.protocol import Done

COMMAND = (sys.executable, "-P", "-m", "neuron_dynamo.warmup.worker")
_TAIL = 2000
_PAGE = os.sysconf("SC_PAGE_SIZE")


class WorkerProcess:
    """A process that compiles one task at a time. `limit` bounds its data in bytes, 0 for none.

    Whatever ends the process in the middle of a task, a crash of the compiler, a signal or `kill`, makes that task a transient failure.
    """

    def __init__(self, limit: int = 0) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NEURON_DYNAMO_COLLECT")}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed in close)
        self._process = subprocess.Popen(
            [*COMMAND, str(limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # a terminal's interrupt is the owner's to handle
        )
        self._reason = ""
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def resident(self) -> int:
        """Bytes of memory that the process holds now; 0 once it is gone."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                return int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def compile(self, task: dict[str, Any], send: bool = False) -> Done:
        """worker.compile_task of the `task` that this describes. Raises nothing."""
        request = json.dumps({"task": task, "send": send}).encode() + b"\n"
        assert self._process.stdin is not None and self._process.stdout is not None
        answer = b""
        with contextlib.suppress(OSError, ValueError):  # the process, or the pipe to it, is gone
            self._process.stdin.write(request)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if answer.endswith(b"\n"):
            return Done.from_json(json.loads(answer))
        return Done("failed", self._epitaph(), transient=True)

    def kill(self, reason: str) -> None:
        """End the process now; its task fails for `reason`."""
        with self._lock:
            self._reason = self._reason or reason
        self._process.kill()

    def close(self) -> None:
        """End the process, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _epitaph(self) -> str:
        self._process.kill()
        code = self._process.wait()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL))
        last_words = self._log.read().decode(errors="replace").strip()
        with self._lock:
            if self._reason:
                return self._reason
        end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the compiling process ended with {end}" + (f"\n{last_words}" if last_words else "")
