"""What runs on a Dask worker: it hands tasks to compiling processes. Without PyTorch, which only those need."""

from __future__ import annotations

import threading
from typing import Any

from neuron_dynamo.warmup.process import WorkerProcess

_here = threading.local()


def compile_here(task: dict[str, Any], send: bool, limit: int, timeout: float | None) -> dict[str, Any]:
    """One task (worker.Task as JSON) in the compiling process of this thread; returns a Done as JSON.

    `limit` bounds that process's data in bytes, `timeout` the task's time in seconds.
    """
    worker: WorkerProcess | None = getattr(_here, "worker", None)
    if worker is None or not worker.alive:
        if worker is not None:
            worker.close()
        worker = _here.worker = WorkerProcess(limit)
    if timeout is None:
        return worker.compile(task, send).to_json()
    watch = threading.Timer(timeout, worker.kill, (f"the compile took more than {timeout:g} seconds",))
    watch.start()
    try:
        return worker.compile(task, send).to_json()
    finally:
        watch.cancel()
