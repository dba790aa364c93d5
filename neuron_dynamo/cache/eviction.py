"""What is removed from a cache directory, and when: least recently used entries, and what the dead left. Safe while jobs run.

Only files of our own layout are ever removed; entries of newer formats, and folders that hold anything besides an entry, stay.
So do quarantined entries, which are kept for somebody to look at: they count towards no limit, and go when that is asked for (`gc`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_dynamo.cache import layout
from neuron_dynamo.cache.locks import FileLock, remove_if_free
from neuron_dynamo.cache.probe import LOADING

STAMP_GRAIN = 3600.0
"""Seconds to which the last use of an entry is known, so that most reads of it write nothing."""

_KEPT = 0.9
"""Share of the limit that an automatic eviction leaves, so that the next publishes need none."""


MARK_AGE = 7 * 24 * 3600.0
"""Seconds after which the mark of a process that died loading an entry goes, if the entry is not in this directory either."""


@dataclass(frozen=True)
class Removed:
    """One thing removed: `kind` is entry, quarantined, draft, lock or mark; `size` its bytes; `reason` says why in words."""

    kind: str
    path: Path
    size: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": str(self.path), "bytes": self.size, "reason": self.reason}


@dataclass(frozen=True)
class Collected:
    """What a collection removed (or would, in a dry run), in that order, and the bytes of entries before and after."""

    removed: tuple[Removed, ...]
    before: int
    after: int

    @property
    def freed(self) -> int:
        """Bytes of all that was removed."""
        return sum(item.size for item in self.removed)

    def to_json(self) -> dict[str, Any]:
        return {
            "removed": [item.to_json() for item in self.removed],
            "freed_bytes": self.freed,
            "before_bytes": self.before,
            "after_bytes": self.after,
        }


@dataclass(frozen=True)
class _Item:
    path: Path
    size: int
    used: float
    inode: int


def touch(folder: int) -> None:
    """Note the use of the entry whose folder is open as descriptor `folder`; does nothing where it may not be written to."""
    with contextlib.suppress(OSError):
        if abs(time.time() - os.fstat(folder).st_mtime) > STAMP_GRAIN:
            os.utime(folder)


def collect(root: Path, max_bytes: int | None = None, max_age: float | None = None, dry_run: bool = False) -> Collected:
    """Remove from the cache directory `root` what is past its limits.

    Entries that nobody used for `max_age` seconds go, then least recently used ones until at most `max_bytes` are left; None is no
    limit. Always go: drafts and lock files whose owner is dead, and old marks of entries that are gone. With `dry_run` nothing is
    touched. Never raises for what others change meanwhile; raises OSError where `root` cannot be read at all, other than by not being
    there.
    """
    return _collect(root, max_bytes, max_bytes, max_age, dry_run)


def trim(root: Path, max_bytes: int) -> Collected | None:
    """Make room in `root` if it holds more than `max_bytes`; None where another process is about it."""
    try:
        lock = FileLock.take(layout.make_folder(root, root / layout.LOCKS) / layout.GC_LOCK)
    except OSError:
        return _collect(root, max_bytes, int(max_bytes * _KEPT), None, False)  # two at once only waste time
    if lock is None:
        return None
    try:
        return _collect(root, max_bytes, int(max_bytes * _KEPT), None, False)
    finally:
        lock.release()


def _collect(root: Path, max_bytes: int | None, target: int | None, max_age: float | None, dry_run: bool) -> Collected:
    with contextlib.suppress(FileNotFoundError):
        os.listdir(root)
    removed = list(_remove_leftovers(root, dry_run))
    now = time.time()
    items = list(_items(root, now, dry_run))
    if max_age is not None or _exceeds(items, max_bytes):
        items = [item for item in items if layout.is_ours(item.path)]
    items.sort(key=lambda item: (item.used, item.path))
    before = left = sum(item.size for item in items)
    evicting = _exceeds(items, max_bytes)
    for item in items:
        age = now - item.used
        if max_age is not None and age > max_age:
            reason = f"not used for {age:.0f} s"
        elif evicting and target is not None and left > target:
            reason = "least recently used"
        else:
            continue
        if dry_run or _remove(root, item):
            removed.append(Removed("entry", item.path, item.size, reason))
            left -= item.size
        elif not os.path.lexists(item.path):
            left -= item.size  # another was faster
    return Collected(tuple(removed), before, left)


def _exceeds(items: list[_Item], max_bytes: int | None) -> bool:
    return max_bytes is not None and sum(item.size for item in items) > max_bytes


def _items(root: Path, now: float, dry_run: bool) -> Iterator[_Item]:
    for version in layout.known_versions(root):
        for shard in _folders(version):
            for folder in _folders(shard):
                if layout.DIGEST.fullmatch(folder.name) and folder.name.startswith(shard.name):
                    yield from _item(folder, now, dry_run)


def _item(folder: Path, now: float, dry_run: bool) -> Iterator[_Item]:
    with contextlib.suppress(OSError):
        status = os.lstat(folder)
        if status.st_mtime > now + STAMP_GRAIN and not dry_run:
            os.utime(folder)  # some clock was wrong; the entry ages from now on
        with os.scandir(folder) as found:
            size = sum(entry.stat(follow_symlinks=False).st_size for entry in found)
        used = status.st_mtime if status.st_mtime <= now + STAMP_GRAIN else now
        yield _Item(folder, size, used, status.st_ino)


def _remove(root: Path, item: _Item) -> bool:
    """Take the entry out of the readers' sight in one step, then remove it; False if it is not there any more, or cannot be moved."""
    trash = root / layout.TMP / (layout.unique_name(item.path.name[:64]) + layout.TRASH)
    try:
        layout.make_folder(root, trash.parent)
        if os.lstat(item.path).st_ino != item.inode:
            return False  # replaced since
        os.rename(item.path, trash)
    except OSError:
        return False
    layout.remove_flat(trash)
    return True


def _remove_leftovers(root: Path, dry_run: bool) -> Iterator[Removed]:
    """What processes that are dead by now were writing or removing, and their lock files."""
    for folder in _folders(root / layout.TMP):
        name = folder.name.removesuffix(layout.TRASH)
        if layout.DRAFT.fullmatch(name) and (folder.name != name or _is_dead(root / layout.LOCKS / f"{name}.lock", dry_run)):
            size = _size(folder)
            if dry_run or _remove_draft(folder, folder.with_name(name + layout.TRASH)):
                yield Removed("draft", folder, size, "its writer is dead")
    with contextlib.suppress(OSError):
        for path in sorted((root / layout.LOCKS).iterdir()):
            if layout.LOCK.fullmatch(path.name) and _is_dead(path, dry_run):
                yield Removed("lock", path, 0, "its owner is dead")
    now = time.time()
    with contextlib.suppress(OSError):
        for path in sorted((root / LOADING).iterdir()):
            digest = path.name.partition(".")[0]
            if not layout.MARK.fullmatch(path.name) or layout.entry_folder(root, digest).exists():
                continue  # it tells the next process to try the entry elsewhere first
            if now - path.lstat().st_mtime > MARK_AGE and _is_dead(path, dry_run):
                yield Removed("mark", path, 0, "its process died long ago, and its entry is gone")


def _remove_draft(folder: Path, trash: Path) -> bool:
    try:
        os.rename(folder, trash)  # if its writer is alive, on a machine whose locks are not seen here, its publish fails as a whole
    except OSError:
        return False
    layout.remove_flat(trash)
    return True


def _is_dead(lock: Path, dry_run: bool) -> bool:
    """Whether nobody holds the lock, for certain."""
    try:
        return not FileLock.is_held(lock) if dry_run else remove_if_free(lock)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as found:
            return sorted(Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _size(folder: Path) -> int:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in found)
    return 0
