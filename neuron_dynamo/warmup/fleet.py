"""Compile on a Dask cluster (the extra `fleet`): for a fleet that warms thousands of graphs on many hosts into one store.

A worker offers slots and memory as resources: `dask worker tcp://... --resources "compile=2 memory=16e9"`. It compiles in a process of its
own (process.py), so that a compiler that crashes costs that one attempt; a worker that dies costs its tasks a move to another. A worker
writes to the cache that the options name, as it sees it. Without a remote cache it also sends the entry back, and the client publishes it:
no shared file system is needed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from neuron_dynamo.cache.entry import BadEntry
from neuron_dynamo.errors import WarmupError
from neuron_dynamo.warmup.fleet_worker import compile_here
from neuron_dynamo.warmup.planning import Item, longest_first
from neuron_dynamo.warmup.protocol import Done
from neuron_dynamo.warmup.summary import Outcome
from neuron_dynamo.warmup.worker import Task, publish

_ATTEMPTS = 2
_POLL_SECONDS = 2.0


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
        largest = _wait_for_offer(client, scheduler, patience)
        queue = [(item, 1) for item in longest_first(items)]
        running: dict[Any, tuple[Item, int]] = {}
        alone_since: float | None = None
        while queue or running:
            while queue:
                item, attempt = queue.pop(0)
                running[_submit(client, item, attempt, largest, timeout)] = item, attempt
            try:
                with client.as_current():
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
            if _offered(client) >= max((_memory(item, largest) for item, _ in running.values()), default=0.0):
                alone_since = None
            elif alone_since is None:
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > patience:
                for item, attempt in running.values():
                    yield Outcome(item, "failed", f"no worker of {scheduler} is left that offers what it takes", 0.0, attempt)
                client.cancel(list(running))
                return


def _wait_for_offer(client: Any, scheduler: str, patience: float) -> float:
    """The memory in bytes that the largest worker offers, once there is one. Raises WarmupError."""
    with contextlib.suppress(TimeoutError):
        client.wait_for_workers(1, timeout=patience)
    largest = _offered(client)
    if not largest:
        raise WarmupError(
            f"no worker of {scheduler} offers the resources 'compile' and 'memory'",
            remedy=f'start workers so: dask worker {scheduler} --resources "compile=2 memory=16e9"',
        )
    return largest


def _offered(client: Any) -> float:
    """The memory in bytes of the largest worker that compiles, 0 without one."""
    offers = [worker["resources"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    return max((float(offer.get("memory", 0)) for offer in offers if offer.get("compile")), default=0.0)


def _memory(item: Item, largest: float) -> float:
    return min(float(item.memory), largest)


def _submit(client: Any, item: Item, attempt: int, largest: float, timeout: float | None) -> Any:
    task = Task(item.name, item.key, item.options, item.wanted.program()).to_json()
    send = not item.options.cache_remote
    return client.submit(
        compile_here,
        task,
        send,
        int(largest),
        timeout,
        resources={"compile": 1, "memory": _memory(item, largest)},
        key=f"neuron-dynamo-{item.key.digest}-{attempt}-{time.time_ns()}",
        pure=False,
    )


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
