"""The plan: each artifact once, hits and misses as the cache has them, times from what the cache remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dynamo.cache import PROGRAM, Artifact, Cache
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.options import Options
from neuron_dynamo.recording import CollectedGraph, Wanted
from neuron_dynamo.warmup.planning import Plan, make_plan
from tests.cache.samples import SIGNATURE, options
from tests.warmup.items import item


def key_of(program: str, compiler: str = "xla-cpu") -> CacheKey:
    return CacheKey((("kind", "artifact"), ("program", program), ("target", "host"), ("compiler", compiler)))


def remember(root: Path, program: str, size: int, seconds: float, compiler: str = "xla-cpu") -> None:
    artifact = Artifact(b"code", SIGNATURE, {"compile": seconds}, blobs={PROGRAM: b"x" * size})
    Cache(options(root)).put(key_of(program, compiler), artifact)


def graph(folder: Path, given: Options, name: str, label: str, *programs: tuple[str, int]) -> CollectedGraph:
    wanted = []
    for program, size in programs:
        path = folder / program
        path.write_bytes(b"x" * size)
        wanted.append(Wanted(key_of(program), SIGNATURE, path))
    return CollectedGraph(name, "inference", label, given, tuple(wanted), 3, 0)


def test_plan(tmp_path: Path) -> None:
    cache, spool = tmp_path / "cache", tmp_path / "spool"
    spool.mkdir()
    given = options(cache)
    for number, seconds in enumerate((1.0, 2.0, 30.0)):
        remember(cache, f"old{number}", 1000, seconds)
    remember(cache, "other", 1000, 500.0, compiler="neuronx-cc")
    graphs = [
        graph(spool, given, "g0", "a rank 0", ("old1", 1000)),
        graph(spool, given, "g1", "a rank 0", ("new", 2000), ("huge", 10_000)),
        graph(spool, given, "g2", "a rank 1", ("new", 2000)),
    ]
    plan = make_plan(graphs)
    assert [(i.name, i.hit, i.seconds) for i in plan.items] == [
        ("a rank 0: g0", True, 2.0),
        ("a rank 0: g1#0", False, 4.0),  # the median of three neighbours, for twice their size
        ("a rank 0: g1#1", False, None),  # nothing known is near ten times that size
    ]
    assert plan.items[1].graphs == ("a rank 0: g1#0", "a rank 1: g2")
    assert [i.name for i in plan.misses] == ["a rank 0: g1#0", "a rank 0: g1#1"]
    assert plan.seconds(1) is None
    data = plan.to_json(2)
    assert (data["hits"], data["misses"], data["predicted_seconds"]) == (1, 2, None)
    assert data["items"][0]["cache"] in ("memory", "disk")


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 16.0), (2, 9.0), (3, 7.0), (99, 7.0)])
def test_predicted_time_of_all(tmp_path: Path, jobs: int, seconds: float) -> None:
    items = [item(tmp_path, f"g{s}", seconds=float(s)) for s in (2, 7, 5, 2)]
    hit = item(tmp_path, "hit", seconds=100.0, level="disk")
    assert Plan((*items, hit)).seconds(jobs) == seconds
