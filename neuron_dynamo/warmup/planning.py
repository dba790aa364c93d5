"""What a warm-up has to do: the artifacts that the collected graphs want, which of them are there, and how long the rest will take.

A time is predicted from the compiles that the cache remembers: those with the same compiler and target of the programs nearest in size.
Where there are none, it is unknown.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_dynamo.cache import PROGRAM, Cache, CacheKey
from neuron_dynamo.cache.listing import entries
from neuron_dynamo.options import Options
from neuron_dynamo.recording import CollectedGraph, Wanted

_NEIGHBOURS = 5
_FARTHEST = math.log(4)
_BASE_MEMORY = 600 * 2**20
_MEMORY_PER_BYTE = 400


@dataclass(frozen=True)
class Item:
    """One artifact, wanted by all of `graphs` ("label: name"). `level` is the cache level that has it, `miss` if none.

    `seconds` is the predicted time of its compile, None if nothing is known; `memory` an estimate in bytes of what that takes.
    """

    name: str
    kind: str
    graphs: tuple[str, ...]
    options: Options = field(repr=False)
    wanted: Wanted = field(repr=False)
    size: int
    level: str
    seconds: float | None

    @property
    def key(self) -> CacheKey:
        return self.wanted.key

    @property
    def hit(self) -> bool:
        return self.level != "miss"

    @property
    def memory(self) -> int:
        return _BASE_MEMORY + _MEMORY_PER_BYTE * self.size

    def to_json(self) -> dict[str, Any]:
        facts = {"size": self.size, "cache": self.level, "predicted_seconds": self.seconds, "predicted_memory": self.memory}
        return {"name": self.name, "kind": self.kind, "key": self.key.digest, "graphs": list(self.graphs), **facts}


@dataclass(frozen=True)
class Plan:
    """Items in the order in which their graphs were met, each artifact once."""

    items: tuple[Item, ...]

    @property
    def misses(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if not item.hit)

    def seconds(self, jobs: int) -> float | None:
        """Predicted time of all misses on `jobs` workers, longest first; None where the time of one is unknown."""
        ends = [0.0] * max(1, jobs)
        for item in longest_first(self.misses):
            if item.seconds is None:
                return None
            heapq.heapreplace(ends, ends[0] + item.seconds)
        return max(ends)

    def to_json(self, jobs: int) -> dict[str, Any]:
        hits = len(self.items) - len(self.misses)
        totals = {"hits": hits, "misses": len(self.misses), "jobs": jobs, "predicted_seconds": self.seconds(jobs)}
        return {"items": [item.to_json() for item in self.items], **totals}


def longest_first(items: Iterable[Item]) -> list[Item]:
    """Items by falling predicted time; those whose time is unknown are taken to grow with their size."""
    return sorted(items, key=lambda item: (-(item.seconds or 0.0), -item.size))


def make_plan(graphs: Sequence[CollectedGraph]) -> Plan:
    """The artifacts that `graphs` want, each once, however many graphs and ranks want it."""
    wanted: dict[str, tuple[CollectedGraph, Wanted, str, list[str]]] = {}
    for graph in graphs:
        for number, program in enumerate(graph.programs):
            title = f"{graph.label}: {graph.name}" if graph.label else graph.name
            name = f"{title}#{number}" if len(graph.programs) > 1 else title
            wanted.setdefault(program.key.digest, (graph, program, name, []))[3].append(name)
    histories: dict[str, History] = {}
    items = []
    for graph, program, name, names in wanted.values():
        history = histories.setdefault(str(graph.options.cache_path), History(graph.options))
        size = program.path.stat().st_size
        level = Cache(graph.options).level(program.key)
        items.append(Item(name, graph.kind, tuple(names), graph.options, program, size, level, history.seconds(program.key, size)))
    return Plan(tuple(items))


class History:
    """The compiles that the cache of `options` remembers."""

    def __init__(self, options: Options) -> None:
        self._known: dict[tuple[str, ...], list[tuple[int, float]]] = {}
        for entry in entries(options.cache_path):
            files, seconds = entry.manifest["files"], entry.manifest["timings"].get("compile")
            if seconds and PROGRAM in files:
                self._known.setdefault(_maker(entry.key), []).append((files[PROGRAM]["size"], seconds))

    def seconds(self, key: CacheKey, size: int) -> float | None:
        """Predicted time of the compile of a program of `size` bytes of StableHLO, or None."""
        near = sorted((abs(math.log(size / known)), known, seconds) for known, seconds in self._known.get(_maker(key), ()))
        scaled = [seconds * size / known for distance, known, seconds in near[:_NEIGHBOURS] if distance <= _FARTHEST]
        return statistics.median(scaled) if scaled else None


def _maker(key: CacheKey) -> tuple[str, ...]:
    parts = dict(key.parts)
    return tuple(parts.get(name, "") for name in ("target", "lnc", "compiler", "compiler_args"))
