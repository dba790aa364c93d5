"""Compile on a Dask cluster (the extra `fleet`): for a fleet that warms thousands of graphs on many hosts into one store.

A worker offers slots and memory as resources: `dask worker tcp://... --resources "compile=2 memory=16e9"`. It compiles in a process of its
own (process.py), so that a compiler that crashes costs that one attempt; a worker that dies costs its tasks a move to another. A worker
writes to the cache that the options name, as it sees it. Without a remote cache it also sends the entry back, and the client publishes it:
no shared file system is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from neuron_dynamo.cache.entry import BadEntry
from neuron_dynamo.errors import WarmupError
from neuron_dynamo.warmup.planning import Item, longest_first
from neuron_dynamo.warmup.process import WorkerProcess
from neuron_dynamo.warmup.summary import Outcome
from neuron_dynamo.warmup.worker import Done, Task, publish

_ATTEMPTS = 2
_POLL_SECONDS = 2.0
_here = threading.local()


def compile_on_cluster(items: Sequence[Item], scheduler: str, timeout: float | None = None, patience: float = 60.0) -> Iterator[Outcome]:
    """Compile `items` on the workers of `scheduler` (tcp://host:port); yields each outcome as it comes.

    Transient failures are tried once more. A cluster without workers for `patience` seconds fails what is left. Raises WarmupError where
    dask is not installed, the scheduler does not answer, or no worker offers the resources.
    """
    try:
        import distributed
    except ImportError as error:
        raise WarmupError("dask is not installed", remedy="pip install 'neuron-dynamo[fleet]'") from error
    dask: Any = distributed
    try:
        client = dask.Client(scheduler, timeout=patience, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise WarmupError(f"the Dask scheduler {scheduler} does not answer: {error}", remedy="start one: dask scheduler") from error
    with client:
        client.wait_for_workers(1, timeout=patience)
        largest = _offered(client, scheduler)
        queue = [(item, 1) for item in longest_first(items)]
        running: dict[Any, tuple[Item, int]] = {}
        alone_since: float | None = None
        while queue or running:
            while queue:
                item, attempt = queue.pop(0)
                running[_submit(client, item, attempt, largest, timeout)] = item, attempt
            try:
                finished = dask.wait(list(running), timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                finished = set()
            for future in finished:
                item, attempt = running.pop(future)
                done = _result(future, item)
                if done.status == "failed" and done.transient and attempt < _ATTEMPTS:
                    queue.append((item, attempt + 1))
                else:
                    yield Outcome(item, done.status, done.message, done.seconds, attempt)
            if client.scheduler_info(n_workers=-1)["workers"]:
                alone_since = None
            elif alone_since is None:
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > patience:
                for item, attempt in running.values():
                    yield Outcome(item, "failed", f"the cluster {scheduler} has no worker left", 0.0, attempt)
                client.cancel(list(running))
                return


def _offered(client: Any, scheduler: str) -> float:
    """The memory in bytes that the largest worker offers."""
    offers = [worker["resources"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    memory = [offer["memory"] for offer in offers if offer.get("compile") and offer.get("memory")]
    if not memory:
        raise WarmupError(
            f"no worker of {scheduler} offers the resources 'compile' and 'memory'",
            remedy=f'start workers so: dask worker {scheduler} --resources "compile=2 memory=16e9"',
        )
    return float(max(memory))


def _submit(client: Any, item: Item, attempt: int, largest: float, timeout: float | None) -> Any:
    try:
        task = Task(item.name, item.key, item.options, item.wanted.program()).to_json()
    except OSError as error:
        return client.submit(_lost, str(error), pure=False)
    memory = min(float(item.memory), largest)
    send = not item.options.cache_remote
    return client.submit(
        compile_here,
        task,
        send,
        int(largest),
        timeout,
        resources={"compile": 1, "memory": memory},
        key=f"neuron-dynamo-{item.key.digest}-{attempt}-{time.time_ns()}",
        pure=False,
    )


def _lost(error: str) -> dict[str, Any]:
    return Done("failed", error).to_json()


def compile_here(task: dict[str, Any], send: bool, limit: int, timeout: float | None) -> dict[str, Any]:
    """What a Dask worker runs: one task, in the compiling process of this thread."""
    worker: WorkerProcess | None = getattr(_here, "worker", None)
    if worker is None or not worker.alive:
        if worker is not None:
            worker.close()
        worker = _here.worker = WorkerProcess(limit)
    watch = threading.Timer(timeout or 0.0, worker.kill, (f"the compile took more than {timeout:g} seconds",)) if timeout else None
    if watch is not None:
        watch.start()
    try:
        return worker.compile(Task.from_json(task), send).to_json()
    finally:
        if watch is not None:
            watch.cancel()


def _result(future: Any, item: Item) -> Done:
    try:
        done = Done.from_json(future.result())
    except Exception as error:  # whatever the cluster made of it: a worker that died too often, versions that do not fit
        return Done("failed", f"{type(error).__name__}: {error}", transient=True)
    if done.entry is not None:
        try:
            publish(item.key, done.entry, item.options)
        except BadEntry as error:
            return Done("failed", f"the entry that the worker sent is bad: {error}", transient=True)
    return done
