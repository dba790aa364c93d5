"""Counts of this process: what was asked of the cache and what it answered, and where the time went."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class CacheStats:
    """Counts since this process began.

    Lookups of artifacts by the level that answered (`memory`, `disk`, `layer`, `remote`, `miss`), lookups of Programs likewise
    (`program_*`; `program_unkeyed` are graphs without an exact description, which are lowered each time), and `restored` graphs, which
    PyTorch's AOTAutogradCache had. `compiles` and `lowerings` were done here; `stored`, `uploaded`, `quarantined` and `evicted` entries;
    `errors` of a cache directory or the remote; `failures` of the compiler, and `remembered` ones that kept it from running; `waits` for
    another process's compile. `seconds` by stage: trace (Dynamo), aot (AOTAutograd), passes, lower, wait, compile, load.
    """

    memory: int = 0
    disk: int = 0
    layer: int = 0
    remote: int = 0
    miss: int = 0
    program_memory: int = 0
    program_disk: int = 0
    program_layer: int = 0
    program_remote: int = 0
    program_miss: int = 0
    program_unkeyed: int = 0
    restored: int = 0
    compiles: int = 0
    lowerings: int = 0
    stored: int = 0
    uploaded: int = 0
    quarantined: int = 0
    evicted: int = 0
    errors: int = 0
    failures: int = 0
    remembered: int = 0
    waits: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def hits(self) -> int:
        """Lookups of artifacts that some level answered."""
        return self.memory + self.disk + self.layer + self.remote

    @property
    def program_hits(self) -> int:
        """Lookups of Programs that some level answered."""
        return self.program_memory + self.program_disk + self.program_layer + self.program_remote

    def to_json(self) -> dict[str, Any]:
        """All counts by name, with `seconds` by stage."""
        return asdict(self)


_lock = threading.Lock()
_stats = CacheStats()


def stats() -> CacheStats:
    """Counts since this process began."""
    return _stats


def count(event: str, number: int = 1) -> None:
    """Add to one of the counts of CacheStats, by its name."""
    global _stats
    with _lock:
        _stats = replace(_stats, **{event: getattr(_stats, event) + number})


def count_lookup(kind: str, level: str) -> None:
    """Count one lookup of an entry of `kind` (artifact, program) by the level that answered, or `miss`."""
    count(level if kind == "artifact" else f"{kind}_{level}")


def spend(stage: str, seconds: float) -> None:
    """Add to the time of one stage."""
    global _stats
    with _lock:
        _stats = replace(_stats, seconds={**_stats.seconds, stage: _stats.seconds.get(stage, 0.0) + seconds})
