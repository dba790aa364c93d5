"""MemoryStore: the artifacts that this process has seen last."""

from __future__ import annotations

import threading
from collections import OrderedDict

from neuron_dynamo.cache.entry import Artifact
from neuron_dynamo.cache.key import CacheKey

CAPACITY = 256 * 2**20
"""Bytes of artifacts that one MemoryStore holds; the newest is held whatever its size."""


class MemoryStore:
    """Artifacts by key, least recently used ones dropped beyond `capacity` bytes. Thread-safe."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._artifacts: OrderedDict[str, Artifact] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def read(self, key: CacheKey) -> Artifact | None:
        with self._lock:
            artifact = self._artifacts.get(key.digest)
            if artifact is not None:
                self._artifacts.move_to_end(key.digest)
            return artifact

    def write(self, key: CacheKey, artifact: Artifact) -> None:
        with self._lock:
            self._drop(key.digest)
            self._artifacts[key.digest] = artifact
            self._size += artifact.size
            while self._size > self._capacity and len(self._artifacts) > 1:
                self._drop(next(iter(self._artifacts)))

    def drop(self, key: CacheKey) -> None:
        with self._lock:
            self._drop(key.digest)

    def _drop(self, digest: str) -> None:
        artifact = self._artifacts.pop(digest, None)
        if artifact is not None:
            self._size -= artifact.size
