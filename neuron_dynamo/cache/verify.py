"""Every checksum of a cache directory looked at, which jobs do only for the entries that they use. Safe while they run."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_dynamo.cache import layout
from neuron_dynamo.cache.entry import MANIFEST, MAX_MANIFEST, Artifact, BadEntry, Read, decode_entry, decode_manifest
from neuron_dynamo.cache.key import FORMAT, CacheKey
from neuron_dynamo.cache.listing import cache_root, entry_folders
from neuron_dynamo.cache.plain import open_plain, read_plain


@dataclass(frozen=True)
class Bad:
    """An entry that no job will use: why, and where it was moved to (None if it was left)."""

    digest: str
    path: Path
    reason: str
    moved_to: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "path": str(self.path),
            "reason": self.reason,
            "moved_to": str(self.moved_to) if self.moved_to else None,
        }


@dataclass(frozen=True)
class Verification:
    """Number of good entries, the bad ones, and the paths of entries of another format, which are left alone."""

    root: Path
    good: int
    bad: tuple[Bad, ...]
    other_format: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "cache_dir": str(self.root),
            "good": self.good,
            "bad": [bad.to_json() for bad in self.bad],
            "other_format": list(map(str, self.other_format)),
        }


def verify(cache_dir: str | os.PathLike[str] | None = None, *, quarantine: bool = False) -> Verification:
    """Read every entry of the cache directory and compare it with its checksums.

    With `quarantine`, bad entries are moved to the directory's `quarantine` folder, where they cost nothing but room.
    An entry that a job removes or replaces meanwhile is not reported. Raises OSError only where the directory itself cannot be read.
    """
    root = cache_root(cache_dir)
    good, bad, other = 0, [], []
    for digest, path in entry_folders(root):
        number = _inode(path)
        try:
            check_entry(digest, lambda name, limit, path=path: _read(path / name, limit))  # type: ignore[misc]
        except (BadEntry, OSError) as error:
            if number is None or _inode(path) != number:
                continue
            if layout.stated_format(path) not in (None, FORMAT):
                other.append(path)
                continue
            reason = str(error) if isinstance(error, BadEntry) else f"{error.filename or path}: {error.strerror}"
            bad.append(Bad(digest, path, reason, _put_aside(root, path, number) if quarantine else None))
        else:
            good += 1
    return Verification(root, good, tuple(bad), tuple(other))


def check_entry(digest: str, read: Read) -> tuple[CacheKey, Artifact]:
    """Key and contents of the entry whose files `read` returns by name. Raises BadEntry unless all is right, or what `read` raises."""
    manifest = decode_manifest(read(MANIFEST, MAX_MANIFEST))
    try:
        key = CacheKey.from_json(manifest["key"])
    except (LookupError, TypeError, ValueError) as error:
        raise BadEntry("its manifest lacks a field") from error
    if key.digest != digest:
        raise BadEntry("it belongs to another key")
    return key, decode_entry(key, read)


def _read(path: Path, limit: int) -> bytes:
    with open_plain(path) as file:
        return read_plain(file, path.name, limit)


def _inode(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.lstat().st_ino
    return None


def _put_aside(root: Path, path: Path, inode: int) -> Path | None:
    """Where the entry now lies, or None where it cannot be moved, or is another one by now."""
    destination = root / layout.QUARANTINE / layout.unique_name(path.name)
    with contextlib.suppress(OSError):
        destination.parent.mkdir(exist_ok=True)
        if _inode(path) == inode:
            os.rename(path, destination)
            return destination
    return None
