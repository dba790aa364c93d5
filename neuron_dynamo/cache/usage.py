"""How much a cache directory holds, of what, and which directory it is. Only reads."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_dynamo.cache import layout
from neuron_dynamo.cache.entry import BadEntry
from neuron_dynamo.cache.key import FORMAT
from neuron_dynamo.cache.listing import cache_root, entry_folders, read_entry
from neuron_dynamo.options import Options


@dataclass(frozen=True)
class Room:
    """Number of things and their bytes."""

    count: int = 0
    size: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(self.count + other.count, self.size + other.size)

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "bytes": self.size}


@dataclass(frozen=True)
class Usage:
    """What a cache directory holds. `groups` are the intact entries by (target, compiler, kind).

    `damaged` entries cannot be read and are never used; `quarantine` holds those that were put aside; `drafts` are being written, or
    were when their writer died; `other_formats` are entries of other versions of this package, by format, which this one never touches.
    """

    root: Path
    groups: dict[tuple[str, str, str], Room]
    damaged: Room
    quarantine: Room
    drafts: Room
    other_formats: dict[int, Room]

    @property
    def entries(self) -> Room:
        return sum(self.groups.values(), Room())

    @property
    def failures(self) -> Room:
        return sum((room for (_, _, kind), room in self.groups.items() if kind == "failure"), Room())

    def to_json(self) -> dict[str, Any]:
        return {
            "cache_dir": str(self.root),
            "entries": self.entries.to_json(),
            "groups": [
                {"target": target, "compiler": compiler, "kind": kind, **room.to_json()}
                for (target, compiler, kind), room in self.groups.items()
            ],
            "failures": self.failures.to_json(),
            "damaged": self.damaged.to_json(),
            "quarantine": self.quarantine.to_json(),
            "drafts": self.drafts.to_json(),
            "other_formats": {str(number): room.to_json() for number, room in self.other_formats.items()},
        }


def usage(cache_dir: str | os.PathLike[str] | None = None) -> Usage:
    """What the cache directory holds, counted. (`neuron_dynamo.cache.stats` counts what this process did with it.)"""
    root = cache_root(cache_dir)
    groups: dict[tuple[str, str, str], Room] = {}
    damaged, others = Room(), _other_formats(root)
    for _, path in entry_folders(root):
        try:
            entry = read_entry(path)
        except BadEntry:
            number = layout.stated_format(path)
            if number is not None and number != FORMAT:
                others[number] = others.get(number, Room()) + Room(1, folder_size(path))
            else:
                damaged += Room(1, folder_size(path))
        except OSError:
            if os.path.lexists(path):
                damaged += Room(1, folder_size(path))
        else:
            place = (entry.target, entry.compiler, entry.kind)
            groups[place] = groups.get(place, Room()) + Room(1, entry.size)
    return Usage(
        root, dict(sorted(groups.items())), damaged, _room(root / layout.QUARANTINE), _room(root / layout.TMP), dict(sorted(others.items()))
    )


def folder_size(path: Path) -> int:
    """Bytes of all files below `path`; links are not followed."""
    total = 0
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        for folder, _, names in os.walk(path):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _room(folder: Path) -> Room:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return Room()
    return sum((Room(1, folder_size(path)) for path in paths), Room())


def _other_formats(root: Path) -> dict[int, Room]:
    found: dict[int, Room] = {}
    with contextlib.suppress(OSError):
        for path in root.iterdir():
            match = layout.VERSION_FOLDER.fullmatch(path.name)
            if match and int(match[1]) != FORMAT and path.is_dir():
                found[int(match[1])] = Room(sum(1 for _ in path.glob("[0-9a-f][0-9a-f]/*")), folder_size(path))
    return found


@dataclass(frozen=True)
class Where:
    """The cache directory that a job with the same options would use, and who said so.

    `source` is `option`, `environment` or `default`. `layers` are the read-only directories below it and `remote` the URL behind it.
    """

    path: Path
    source: str
    exists: bool
    writable: bool
    layers: tuple[Path, ...] = ()
    remote: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "cache_dir": str(self.path),
            "source": self.source,
            "exists": self.exists,
            "writable": self.writable,
            "layers": list(map(str, self.layers)),
            "remote": self.remote,
        }


def where(cache_dir: str | os.PathLike[str] | None = None) -> Where:
    """The one cache directory that options, environment and defaults resolve to, for Python, commands and torch.compile alike."""
    options = Options.resolve({"cache_dir": cache_dir} if cache_dir is not None else None)
    source = "option" if cache_dir is not None else "default"
    if cache_dir is None and os.environ.get("NEURON_DYNAMO_CACHE_DIR"):
        source = "environment"
    path = options.cache_path
    parent = next((p for p in (path, *path.parents) if p.exists()), path)
    return Where(
        path,
        source,
        path.is_dir(),
        parent.is_dir() and os.access(parent, os.W_OK | os.X_OK),
        options.layer_paths,
        options.cache_remote or "",
    )
