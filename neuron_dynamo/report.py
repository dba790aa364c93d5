"""Reports: what happened to each graph, filled as it happens. `reports()` lists those of this process."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neuron_dynamo.cache.counters import spend
from neuron_dynamo.errors import SourceLine

if TYPE_CHECKING:
    from neuron_dynamo.cache.key import CacheKey
    from neuron_dynamo.lowering.program import OpSource

_LEVELS = ("restored", "memory", "disk", "layer", "remote", "miss")
"""Where a thing may come from, by what it costs."""


@dataclass(frozen=True)
class OpReport:
    """One op of the FX graph: its name, placement, why it has that ("" if native) and the user's line.

    The placement is "native" (in a program), "host" (eager PyTorch, for want of a lowering) or "runtime" (what is done around programs on
    any target: views of outputs, writes into inputs, random state).
    """

    name: str
    placement: str
    reason: str = ""
    source: SourceLine | None = None

    def to_json(self) -> list[Any]:
        where = self.source
        return [self.name, self.placement, self.reason, [where.file, where.line, where.module, where.code] if where else None]

    @staticmethod
    def from_json(data: list[Any]) -> OpReport:
        name, placement, reason, where = data
        return OpReport(name, placement, reason, SourceLine(*where) if where else None)


@dataclass(frozen=True)
class FusionReport:
    """A fusion that a graph has, or nearly has: its name, the number of FX nodes in it (0 for a near miss), why it was missed, and the
    user's line."""

    name: str
    nodes: int
    reason: str = ""
    source: SourceLine | None = None


@dataclass(frozen=True)
class ProgramReport:
    """One native program of a graph: its cache key (hex digest), the level that had its artifact, and its StableHLO bytes.

    `lowered` is where the Program came from: the cache level, `miss` where the graph was lowered, `restored` where nothing was looked
    up because PyTorch's AOTAutogradCache had the whole graph. `why` tells, after a `miss`, what in the cache came nearest.
    `graph` is the canonical text of the FX graph behind the Program, or why it has none; `sources` and `aliases` are the Program's own
    (empty for a restored graph).
    """

    key: str
    cache: str
    program: bytes = field(repr=False)
    lowered: str = "restored"
    cache_key: CacheKey | None = field(default=None, repr=False)
    program_key: CacheKey | None = field(default=None, repr=False)
    cache_dir: str = field(default="", repr=False)
    graph: str = field(default="", repr=False)
    sources: tuple[OpSource, ...] = field(default=(), repr=False)
    aliases: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    @property
    def why(self) -> str:
        """Reason of a miss, as the cache directory tells it now: the nearest older entry and the parts of the key that differ."""
        if self.cache != "miss" or self.cache_key is None:
            return ""
        if not self.cache_dir:
            return "the cache is off"
        from neuron_dynamo.cache.explain import why_missed

        return why_missed(self.cache_key, self.cache_dir)

    @property
    def stablehlo(self) -> str:
        """StableHLO as readable text."""
        from neuron_dynamo.lowering.pipeline import stablehlo_text

        return stablehlo_text(self.program)

    @property
    def hlo(self) -> str:
        """The HLO module as text, before any compiler's optimisation."""
        from neuron_dynamo import xla

        return xla.hlo_text(self.program)


@dataclass
class GraphReport:
    """What became of one FX graph.

    `kind` is forward, backward or inference; `fx` the graph's text after AOTAutograd (`passes_fx` after the passes, '' for a restored
    graph); `timings` seconds by stage (passes, lower, wait for another process that compiles it, compile, load). A graph that was cut by
    host ops has several programs; then `stablehlo` and `hlo` join their texts.
    """

    name: str
    kind: str
    fx: str = ""
    ops: list[OpReport] = field(default_factory=list)
    programs: list[ProgramReport] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    target: str = "host"
    passes_fx: str = ""
    fusions: list[FusionReport] = field(default_factory=list)

    @property
    def stablehlo(self) -> str:
        return "\n".join(program.stablehlo for program in self.programs)

    @property
    def hlo(self) -> str:
        return "\n".join(program.hlo for program in self.programs)

    @property
    def key(self) -> str:
        """Hex digest of the cache key; several joined by commas where the graph has several programs; '' where it has none."""
        return ",".join(program.key for program in self.programs)

    @property
    def cache(self) -> str:
        """Where the artifacts came from: the costliest of `memory`, `disk`, `remote`, `miss` over the graph's programs."""
        return max((program.cache for program in self.programs), key=_LEVELS.index, default="memory")

    @property
    def lowered(self) -> str:
        """Where the Programs came from: the costliest of `restored`, `memory`, `disk`, `remote`, `miss` over the graph's programs."""
        return max((program.lowered for program in self.programs), key=_LEVELS.index, default="restored")

    @property
    def native(self) -> int:
        """Number of ops in native programs."""
        return sum(op.placement == "native" for op in self.ops)

    @property
    def host(self) -> int:
        """Number of ops that run on the host for want of a native lowering."""
        return sum(op.placement == "host" for op in self.ops)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to timings[name]."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add to timings[name], if there is something to add."""
        if seconds:
            self.timings[name] = self.timings.get(name, 0.0) + seconds
            spend(name, seconds)

    def describe(self) -> dict[str, Any]:
        """The part that a stored graph carries: everything but programs and timings."""
        return {"name": self.name, "kind": self.kind, "fx": self.fx, "target": self.target, "ops": [op.to_json() for op in self.ops]}

    @staticmethod
    def restore(data: dict[str, Any]) -> GraphReport:
        ops = [OpReport.from_json(op) for op in data["ops"]]
        return GraphReport(data["name"], data["kind"], data["fx"], ops, target=data["target"])


_reports: list[GraphReport] = []
_numbers = itertools.count()
_lock = threading.Lock()


def record(report: GraphReport) -> None:
    """Append to the process's list."""
    with _lock:
        _reports.append(report)


def graph_name(model_name: str | None, kind: str) -> str:
    """A name that is unique in this process, e.g. `model_3_forward`."""
    return f"{model_name or 'graph'}_{next(_numbers)}_{kind}"


def reports() -> list[GraphReport]:
    """Reports of all graphs that this process compiled or restored, oldest first."""
    with _lock:
        return list(_reports)


def clear() -> None:
    """Forget all reports."""
    with _lock:
        _reports.clear()
