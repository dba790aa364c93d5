"""Cache: what compile.py asks. Policy over the stores: modes, levels, and what to do when a directory or an entry is bad."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from neuron_dynamo.cache import mega_cache
from neuron_dynamo.cache.counters import count, count_lookup
from neuron_dynamo.cache.entry import Artifact, BadEntry, ForeignEntry
from neuron_dynamo.cache.eviction import trim
from neuron_dynamo.cache.failures import recall
from neuron_dynamo.cache.flight import one_thread
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.layers import Layers
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.locks import PATIENCE, LocksUnavailable, Stalled, wait_for
from neuron_dynamo.cache.memory import MemoryStore
from neuron_dynamo.cache.remote_level import remote_for
from neuron_dynamo.cache.trouble import BAD_ENTRY, warn_once
from neuron_dynamo.errors import CacheMissError
from neuron_dynamo.options import Options


@dataclass(frozen=True)
class Lookup:
    """Answer of the cache: the artifact, and the level that had it (`memory`, `disk`, `layer`, `remote`), or None and `miss`.

    `waited` are the seconds for which another thread or process was making it.
    """

    level: str
    artifact: Artifact | None
    waited: float = 0.0


_MISS = Lookup("miss", None)
_lock = threading.Lock()
_memory: dict[Path, MemoryStore] = {}
_refreshed: set[tuple[Path, str]] = set()
_rejected: dict[tuple[Path, str], tuple[int, int] | None] = {}
_borrowed: set[tuple[Path, str]] = set()
_headroom: dict[Path, int] = {}

_SHARES = 16
"""Of the room that is left under the size limit, each process publishes one share before it looks again."""


class Cache:
    """The compile cache as `options.cache` and `options.cache_dir` set it. Cheap to make; thread-safe.

    Trouble with the directory costs one CacheWarning for each process and directory; artifacts then live in memory alone.
    """

    def __init__(self, options: Options) -> None:
        self._mode = options.cache
        self._limit = options.cache_bytes
        self._local = LocalStore(options.cache_path)
        self._layers, self._remote = Layers(options.layer_paths), remote_for(options)
        with _lock:
            self._memory = _memory.setdefault(self._local.root, MemoryStore())

    @property
    def writable(self) -> bool:
        """Whether this cache may write to its directory."""
        return self._mode in ("on", "refresh")

    @property
    def marks(self) -> Path | None:
        """The directory in which entries being loaded may be marked (see probe.py)."""
        return self._local.root if self.writable else None

    def lookup(self, key: CacheKey, graph: str = "") -> Lookup:
        """The artifact of `key` and the level that had it. Raises CacheMissError, naming `graph`, where the mode is `require`.

        In mode `refresh`, an entry that this process has not made anew is a miss.
        """
        if self._mode == "off":
            return _MISS
        found = self._find(key)
        if found.artifact is None:
            found = self._download(key)
        count_lookup(key.kind, found.level)
        if found.artifact is None and self._mode == "require":
            raise self._miss_error(key, graph)
        return found

    def obtain(self, key: CacheKey, graph: str, make: Callable[[], Artifact]) -> Lookup:
        """The artifact of `key`, which is made and stored if there is none; then the level is `miss`.

        Of all threads and processes on one directory that miss, one calls `make`; the others wait for as long as it works, and read what it
        made. Where it fails or dies, the next calls `make`; where it lives and does nothing, or the directory has no locks, each does.
        Raises what `make` raises, and CacheMissError where the mode is `require`.
        """
        if self._mode == "off":
            return Lookup("miss", make())
        found = self._find(key)
        if found.artifact is None and self._mode == "require":
            found = self._download(key)
        if found.artifact is not None or self._mode == "require":
            count_lookup(key.kind, found.level)
            if found.artifact is None:
                raise self._miss_error(key, graph)
            return found
        start, before = time.monotonic(), self._identity(key)
        with one_thread(str(self._local.root), key.digest), self._one_process(key):
            waited = time.monotonic() - start
            found = self._find_after_wait(key, before)
            if found.artifact is not None:
                count("waits")
                count_lookup(key.kind, found.level)
                return replace(found, waited=waited)
            found = self._download(key)
            count_lookup(key.kind, found.level)
            if found.artifact is not None:
                return replace(found, waited=waited)
            artifact = make()
            self._keep(key, artifact)
        self._upload(key, artifact)  # nobody here needs to wait for that
        return Lookup("miss", artifact)

    def level(self, key: CacheKey) -> str:
        """The level that has `key` now; counts and writes nothing, and warns only of a remote that fails."""
        if self._mode == "off" or self._is_to_be_made_anew(key):
            return "miss"
        if self._memory.read(key) is not None:
            return "memory"
        with contextlib.suppress(BadEntry, OSError):
            if self._local.read(key) is not None:
                return "disk"
        if self._layers.peek(key) is not None:
            return "layer"
        return "remote" if self._remote is not None and self._remote.has(key) else "miss"

    def peek(self, key: CacheKey) -> Artifact | None:
        """The artifact of `key` if memory, the directory or a layer has it now; counts, warns and writes nothing."""
        artifact = self._memory.read(key)
        if artifact is None:
            with contextlib.suppress(BadEntry, OSError):
                artifact = self._local.read(key)
        return artifact if artifact is not None else self._layers.peek(key)

    def put(self, key: CacheKey, artifact: Artifact) -> None:
        """Keep `artifact` under `key`; in the modes `on` and `refresh` also on disk and at the remote.

        In mode `refresh` it takes the place of what is there; in mode `off` nothing is kept.
        """
        if self._mode != "off":
            self._keep(key, artifact)
            self._upload(key, artifact)

    def own(self, key: CacheKey) -> Artifact | None:
        """What memory or the writable directory has of `key`, not layers nor the remote; nothing in the modes `off` and `refresh`."""
        if self._mode in ("off", "refresh"):
            return None
        artifact = self._memory.read(key)
        return artifact if artifact is not None else self._read_local(key)

    def keep_own(self, key: CacheKey, artifact: Artifact) -> None:
        """Keep `artifact` where `own` finds it, in place of what is there; not in mode `off`."""
        if self._mode == "off":
            return
        self._memory.write(key, artifact)
        if self.writable:
            self._write_local(key, artifact, in_place=True)

    def drop_own(self, key: CacheKey) -> None:
        """Take away what `own` finds, where this cache may write."""
        self._memory.drop(key)
        if self.writable:
            try:
                self._local.remove(key)
            except OSError as error:
                self._directory_failed(error)

    def _upload(self, key: CacheKey, artifact: Artifact) -> None:
        if self._remote is not None:
            self._remote.write(key, artifact, replace=self._mode == "refresh")

    def _keep(self, key: CacheKey, artifact: Artifact) -> None:
        _borrowed.discard((self._local.root, key.digest))
        self._memory.write(key, artifact)
        if self._mode == "refresh":
            _refreshed.add((self._local.root, key.digest))
        if self.writable:
            self._write_local(key, artifact, in_place=self._mode == "refresh" or self._is_rejected(key))
        count("stored")
        mega_cache.record(key, self.peek)

    def reject(self, key: CacheKey, reason: str) -> None:
        """Never serve the entry of `key` again: its bytes are intact, but the compiler could not load them."""
        self._memory.drop(key)
        identity = _rejected[self._local.root, key.digest] = self._identity(key)
        self._layers.shun(key)
        if self._remote is not None:
            self._remote.shun(key)
        if identity is None:
            count("quarantined")
            self._warn_once(BAD_ENTRY, f"entry {key.digest}, which lies elsewhere, is bad and was ignored: {reason}")
        else:
            self._quarantine(key, reason)

    def nearest(self, key: CacheKey) -> CacheKey | None:
        """The stored key that differs from `key` in the fewest parts, or None if the directory holds none of its kind."""
        candidates = (other for other in self._local.stored_keys() if other.kind == key.kind)
        return min(candidates, key=lambda other: (len(key.differing(other)), other.digest), default=None)

    @property
    def _elsewhere(self) -> str:
        """The levels below the directory, as part of a sentence."""
        remote = f", nor at {self._remote.url}" if self._remote is not None else ""
        return f"{', nor in its layers' if self._layers else ''}{remote}"

    def _find(self, key: CacheKey) -> Lookup:
        """What `lookup` answers, uncounted."""
        if self._is_to_be_made_anew(key):
            return _MISS
        artifact, level = self._memory.read(key), "memory"
        if artifact is None:
            artifact, level = self._read_local(key), "disk"
            if artifact is None and (self._local.root, key.digest) not in _rejected:
                artifact = mega_cache.loaded(key)
                if artifact is not None and self.writable:
                    self._write_local(key, artifact)
            if artifact is None:
                artifact, level = self._layers.read(key), "layer"
                _borrowed.add((self._local.root, key.digest))
            if artifact is None:
                return _MISS
            self._memory.write(key, artifact)
        elif self.writable and (self._local.root, key.digest) not in _borrowed:
            self._write_local(key, artifact)  # the directory may have been emptied, or not have been writable before
        mega_cache.record(key, self.peek)
        return Lookup(level, artifact)

    def _download(self, key: CacheKey) -> Lookup:
        """What the remote has of `key`, once it has answered; published here, so that the next process needs no network."""
        if self._remote is None or self._is_to_be_made_anew(key):
            return _MISS
        artifact = self._remote.read(key)
        if artifact is None:
            return _MISS
        self._memory.write(key, artifact)
        _borrowed.discard((self._local.root, key.digest))
        if self._mode != "readonly":
            self._write_local(key, artifact)
        mega_cache.record(key, self.peek)
        return Lookup("remote", artifact)

    def _find_after_wait(self, key: CacheKey, before: tuple[int, int] | None) -> Lookup:
        """What `_find` answers; what took the place of the entry of identity `before` meanwhile was made anew by another process."""
        if self._is_to_be_made_anew(key) and self._identity(key) not in (None, before):
            _refreshed.add((self._local.root, key.digest))
            self._memory.drop(key)
        return self._find(key)

    def _is_to_be_made_anew(self, key: CacheKey) -> bool:
        return self._mode == "refresh" and (self._local.root, key.digest) not in _refreshed

    def _is_rejected(self, key: CacheKey) -> bool:
        """Whether the entry that lies there is one that was rejected and could not be moved away."""
        identity = _rejected.get((self._local.root, key.digest))
        return identity is not None and self._identity(key) == identity

    def _identity(self, key: CacheKey) -> tuple[int, int] | None:
        try:
            return self._local.identity(key)
        except OSError:
            return None

    @contextlib.contextmanager
    def _one_process(self, key: CacheKey) -> Iterator[None]:
        """Let one process at a time into the block, where the directory may be written to and has locks."""
        lock = None
        if self.writable:
            try:
                lock = wait_for(self._local.lock_path(key), PATIENCE)
                lock.keep_beating()
            except Stalled as owner:
                self._warn_once(
                    "stalled",
                    f"{owner} holds the lock of {key.digest}, but has done nothing for {PATIENCE:.0f} s; it is waited for no longer",
                )
            except LocksUnavailable as error:
                count("errors")
                self._warn_once("locks", f"{error}; processes that need the same graph at the same time each compile it")
            except OSError as error:
                self._directory_failed(error)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _read_local(self, key: CacheKey) -> Artifact | None:
        try:
            if self._mode == "readonly" and not (self._layers or self._remote or self._local.root.exists()):
                self._warn_once("directory", "it does not exist")
            return None if self._is_rejected(key) else self._local.read(key, note_use=self.writable)
        except ForeignEntry as error:
            self._warn_once("foreign", f"entry {key.digest} is not used and stays where it is: {error}")
        except BadEntry as error:
            self._quarantine(key, str(error), error.identity)
        except OSError as error:
            self._directory_failed(error)
        return None

    def _write_local(self, key: CacheKey, artifact: Artifact, in_place: bool = False) -> None:
        if self._limit is not None and artifact.size > self._limit:
            self._warn_once(
                "size", f"an entry of {artifact.size} bytes is larger than cache_size allows all to be; it is kept in memory alone"
            )
            return
        try:
            published = self._local.write(key, artifact, in_place)
            if published:
                self._make_room(published)
        except OSError as error:
            self._directory_failed(error)

    def _make_room(self, published: int) -> None:
        """Keep the directory within its size limit, now that it holds `published` more bytes."""
        if self._limit is None:
            return
        root = self._local.root
        with _lock:
            left = _headroom[root] = _headroom.get(root, 0) - published
        if left > 0:
            return
        outcome = trim(root, self._limit)
        if outcome is not None:
            with _lock:
                _headroom[root] = max(0, self._limit - outcome.after) // _SHARES
            if outcome.removed:
                count("evicted", sum(item.kind == "entry" for item in outcome.removed))

    def _quarantine(self, key: CacheKey, reason: str, identity: tuple[int, int] | None = None) -> None:
        outcome = "ignored"
        if self.writable:
            try:
                outcome = f"moved to {self._local.quarantine(key, identity)}"
            except FileNotFoundError:
                return  # another process was faster
            except ForeignEntry:
                pass  # it took the place of the bad one
            except OSError as error:
                self._directory_failed(error)
        count("quarantined")
        self._warn_once(BAD_ENTRY, f"entry {key.digest} is bad and was {outcome}: {reason}")

    def _directory_failed(self, error: OSError) -> None:
        count("errors")
        self._warn_once("directory", f"{error}; artifacts are kept in memory alone")

    def _warn_once(self, subject: str, text: str) -> None:
        warn_once(f"cache directory {self._local.root}", subject, text)

    def _miss_error(self, key: CacheKey, graph: str) -> CacheMissError:
        nearest = self.nearest(key)
        if nearest is None:
            difference = "the directory holds no entry of its kind"
        elif nearest.digest == key.digest:
            difference = "the directory has its entry, but that is bad, as a warning says, or cannot be loaded"
        else:
            parts = "; ".join(f"{name} is {own!r}, stored {stored!r}" for name, own, stored in key.differing(nearest))
            difference = f"the nearest entry, {nearest.digest}, differs in {parts}"
        failure = recall(self, key)
        if failure is not None:
            difference = f"the compiler failed on it when the cache was warmed: {failure.what}"
        where = f"the cache directory {self._local.root}{self._elsewhere}"
        return CacheMissError(
            f"graph {graph or key.digest} is not in {where}, and cache='require'; {difference}",
            remedy="warm the cache with the same model, options and versions, or set cache='on'",
        )
