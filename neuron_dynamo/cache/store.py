"""Cache: what compile.py asks. Policy over the stores: modes, levels, and what to do when a directory or an entry is bad."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

from neuron_dynamo.cache.counters import count, count_lookup
from neuron_dynamo.cache.entry import Artifact, BadEntry
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.memory import MemoryStore
from neuron_dynamo.errors import CacheMissError, CacheWarning
from neuron_dynamo.options import Options


@dataclass(frozen=True)
class Lookup:
    """Answer of the cache: the artifact, and the level that had it (`memory`, `disk`), or None and `miss`."""

    level: str
    artifact: Artifact | None


_MISS = Lookup("miss", None)
_lock = threading.Lock()
_memory: dict[Path, MemoryStore] = {}
_warned: set[tuple[Path, str]] = set()


class Cache:
    """The compile cache as `options.cache` and `options.cache_dir` set it. Cheap to make; thread-safe.

    Trouble with the directory costs one CacheWarning for each process and directory; artifacts then live in memory alone.
    """

    def __init__(self, options: Options) -> None:
        self._mode = options.cache
        self._local = LocalStore(options.cache_path)
        with _lock:
            self._memory = _memory.setdefault(self._local.root, MemoryStore())

    @property
    def writable(self) -> bool:
        """Whether this cache may write to its directory."""
        return self._mode == "on"

    def lookup(self, key: CacheKey, graph: str = "") -> Lookup:
        """The artifact of `key` and the level that had it. Raises CacheMissError, naming `graph`, where the mode is `require`."""
        if self._mode == "off":
            return _MISS
        artifact, level = self._memory.read(key), "memory"
        if artifact is None:
            artifact, level = self._read_local(key), "disk"
            if artifact is not None:
                self._memory.write(key, artifact)
        elif self.writable:
            self._write_local(key, artifact)  # the directory may have been emptied, or not have been writable before
        if artifact is None:
            count_lookup(key.kind, "miss")
            if self._mode == "require":
                raise self._miss_error(key, graph)
            return _MISS
        count_lookup(key.kind, level)
        return Lookup(level, artifact)

    def level(self, key: CacheKey) -> str:
        """The level that has `key` now; counts, warns and writes nothing."""
        if self._mode == "off":
            return "miss"
        if self._memory.read(key) is not None:
            return "memory"
        try:
            return "miss" if self._local.read(key) is None else "disk"
        except (BadEntry, OSError):
            return "miss"

    def put(self, key: CacheKey, artifact: Artifact) -> None:
        """Keep `artifact` under `key`; in mode `on` also on disk, in mode `off` not at all."""
        if self._mode == "off":
            return
        self._memory.write(key, artifact)
        if self.writable:
            self._write_local(key, artifact)
        count("stored")

    def reject(self, key: CacheKey, reason: str) -> None:
        """Never serve the entry of `key` again: its bytes are intact, but the compiler could not load them."""
        self._memory.drop(key)
        self._quarantine(key, reason)

    def nearest(self, key: CacheKey) -> CacheKey | None:
        """The stored key that differs from `key` in the fewest parts, or None if the directory holds no entry."""
        return min(self._local.stored_keys(), key=lambda other: (len(key.differing(other)), other.digest), default=None)

    def _read_local(self, key: CacheKey) -> Artifact | None:
        try:
            if self._mode == "readonly" and not self._local.root.exists():
                self._warn_once("directory", "it does not exist")
            return self._local.read(key)
        except BadEntry as error:
            self._quarantine(key, str(error))
        except OSError as error:
            self._directory_failed(error)
        return None

    def _write_local(self, key: CacheKey, artifact: Artifact) -> None:
        try:
            self._local.write(key, artifact)
        except OSError as error:
            self._directory_failed(error)

    def _quarantine(self, key: CacheKey, reason: str) -> None:
        outcome = "ignored"
        if self.writable:
            try:
                outcome = f"moved to {self._local.quarantine(key)}"
            except FileNotFoundError:
                return  # another process was faster
            except OSError as error:
                self._directory_failed(error)
        count("quarantined")
        self._warn_once(key.digest, f"entry {key.digest} is bad and was {outcome}: {reason}")

    def _directory_failed(self, error: OSError) -> None:
        count("errors")
        self._warn_once("directory", f"{error}; artifacts are kept in memory alone")

    def _warn_once(self, subject: str, text: str) -> None:
        with _lock:
            if (self._local.root, subject) in _warned:
                return
            _warned.add((self._local.root, subject))
        warnings.warn(f"ND130: cache directory {self._local.root}: {text}", CacheWarning, stacklevel=2)

    def _miss_error(self, key: CacheKey, graph: str) -> CacheMissError:
        nearest = self.nearest(key)
        if nearest is None:
            difference = "the directory holds no entry"
        else:
            parts = "; ".join(f"{name} is {own!r}, stored {stored!r}" for name, own, stored in key.differing(nearest))
            difference = f"the nearest entry, {nearest.digest}, differs in {parts}"
        return CacheMissError(
            f"graph {graph or key.digest} is not in the cache directory {self._local.root}, and cache='require'; {difference}",
            remedy="warm the cache with the same model, options and versions, or set cache='on'",
        )
