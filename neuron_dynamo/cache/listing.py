"""What lies in a cache directory, for people: entries with their manifests. Only reads."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_dynamo.cache.entry import MANIFEST, BadEntry, decode_manifest
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.local import LocalStore


@dataclass(frozen=True)
class Entry:
    """One intact manifest: its key, directory, bytes of all its files, and when it was written (seconds since the epoch)."""

    key: CacheKey
    path: Path
    size: int
    created: float
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        return self.key.digest

    def to_json(self) -> dict[str, Any]:
        return {"digest": self.digest, "path": str(self.path), "size": self.size, "created": self.created, "manifest": self.manifest}


def entries(root: Path) -> tuple[Entry, ...]:
    """Entries below the cache directory `root`, newest first; those with a damaged manifest, which is never used, are left out."""
    store = LocalStore(root)
    found = []
    for key in store.stored_keys():
        path = store.entry_path(key)
        with contextlib.suppress(OSError, BadEntry, LookupError, TypeError):  # it may be replaced or damaged at any moment
            manifest = decode_manifest((path / MANIFEST).read_bytes())
            size = sum(file["size"] for file in manifest["files"].values())
            found.append(Entry(key, path, size, (path / MANIFEST).stat().st_mtime, manifest))
    return tuple(sorted(found, key=lambda entry: (-entry.created, entry.digest)))
