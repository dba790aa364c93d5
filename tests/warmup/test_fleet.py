"""A Dask cluster that compiles: workers that die, entries that are sent back, and what is told where it cannot work."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dynamo.cache import Cache
from neuron_dynamo.cache.entry import encode_entry
from neuron_dynamo.errors import WarmupError
from neuron_dynamo.warmup import Limits, compile_plan
from neuron_dynamo.warmup.fleet import _result, compile_on_cluster
from neuron_dynamo.warmup.planning import make_plan
from neuron_dynamo.warmup.protocol import Done
from neuron_dynamo.warmup.summary import Outcome
from tests.cache.samples import artifact, options
from tests.warmup.items import item
from tests.warmup.real_items import graphs


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from distributed import LocalCluster

    given = {"compile": 1, "memory": 8e9}
    folder = tmp_path_factory.mktemp("dask")
    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, local_directory=str(folder), resources=given
    ) as cluster:
        yield cluster


def test_one_of_two_workers_is_killed(tmp_path: Path, cluster: Any) -> None:
    plan = make_plan(graphs(tmp_path / "spool", options(tmp_path / "cache"), 6))
    seen: list[Outcome] = []

    def kill_one(outcome: Outcome) -> None:
        if not seen:
            nanny = next(iter(cluster.workers.values()))
            os.kill(nanny.process.process.pid, signal.SIGKILL)
        seen.append(outcome)

    outcomes = compile_plan(plan, Limits(scheduler=cluster.scheduler_address), kill_one)
    assert [outcome.message for outcome in outcomes if outcome.message] == []
    assert len(seen) == 6 and {outcome.status for outcome in outcomes} <= {"compiled", "hit"}
    assert {Cache(options(tmp_path / "cache")).level(item.key) for item in plan.items} <= {"memory", "disk"}


def test_a_fleet_fills_the_remote(tmp_path: Path, cluster: Any) -> None:
    """What the workers compile is there for a machine that has nothing but the remote."""
    remote = (tmp_path / "remote").as_uri()
    plan = make_plan(graphs(tmp_path / "spool", options(tmp_path / "cache", cache_remote=remote), 3))
    outcomes = compile_plan(plan, Limits(scheduler=cluster.scheduler_address), lambda _: None)
    assert [(outcome.status, outcome.message) for outcome in outcomes] == [("compiled", "")] * 3
    elsewhere = Cache(options(tmp_path / "elsewhere", "require", cache_remote=remote))
    assert [elsewhere.lookup(item.key).level for item in plan.items] == ["remote"] * 3


def test_a_worker_without_resources_is_told(tmp_path: Path) -> None:
    from distributed import LocalCluster

    place: dict[str, Any] = {"host": "127.0.0.1", "protocol": "tcp", "dashboard_address": None, "local_directory": str(tmp_path)}
    with (
        LocalCluster(n_workers=1, processes=False, **place) as cluster,
        pytest.raises(WarmupError, match=r"no worker of tcp.* offers the resources 'compile' and 'memory'\n.*dask worker"),
    ):
        list(compile_on_cluster([item(tmp_path, "x")], cluster.scheduler_address))


def test_a_scheduler_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(WarmupError, match="does not answer"):
        list(compile_on_cluster([item(tmp_path, "x")], "tcp://127.0.0.1:1", patience=1.0))


class Answer:
    """A future of Dask's that is done."""

    def __init__(self, answer: Done | Exception) -> None:
        self._answer = answer

    def result(self) -> dict[str, Any]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer.to_json()


def test_an_entry_that_was_sent_is_published(tmp_path: Path) -> None:
    wanted = item(tmp_path, "x", options(tmp_path / "cache"))
    entry = encode_entry(wanted.key, artifact())
    assert _result(Answer(Done("compiled", entry=entry)), wanted).status == "compiled"
    assert Cache(wanted.options).lookup(wanted.key).artifact == artifact()

    other = item(tmp_path, "y", options(tmp_path / "cache"))
    bad = _result(Answer(Done("compiled", entry={**entry, "artifact.bin": b"other bytes"})), other)
    assert (bad.status, bad.transient) == ("failed", True) and "bad" in bad.message
    assert Cache(other.options).level(other.key) == "miss"


def test_whatever_dask_raises_may_pass(tmp_path: Path) -> None:
    done = _result(Answer(RuntimeError("worker died 3 times")), item(tmp_path, "x"))
    assert (done.status, done.transient, done.message) == ("failed", True, "RuntimeError: worker died 3 times")
