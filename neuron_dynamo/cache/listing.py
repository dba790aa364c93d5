"""What lies in a cache directory, for people: entries with their manifests. Only reads."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_dynamo.cache import layout
from neuron_dynamo.cache.entry import MANIFEST, PAYLOAD, PROGRAM, BadEntry, decode_manifest
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.plain import read_manifest
from neuron_dynamo.errors import InspectError
from neuron_dynamo.options import Options

KINDS = ("artifact", "program", "failure")
"""What an entry can hold: a compiled artifact, the Program of an FX graph, the remembered error of a compiler."""
ORDERS = ("created", "used", "size", "seconds", "target")


@dataclass(frozen=True)
class Entry:
    """One intact manifest: its key, directory, bytes of all its files, and when it was written and last used (seconds since the epoch).

    The last use is known to the hour.
    """

    key: CacheKey
    path: Path
    size: int
    created: float
    used: float
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        return self.key.digest

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return self.key.kind

    @property
    def target(self) -> str:
        return dict(self.key.parts).get("target", "")

    @property
    def compiler(self) -> str:
        return dict(self.key.parts).get("compiler", "")

    @property
    def seconds(self) -> float:
        """What it took to make the entry, and so what a hit saves."""
        return float(sum(self.manifest["timings"].values()))

    @property
    def stablehlo(self) -> str:
        """The StableHLO behind the entry as text. Raises InspectError for an entry that has none, OSError if it is gone."""
        from neuron_dynamo.lowering.pipeline import stablehlo_text

        name = PAYLOAD if self.kind == "program" else PROGRAM
        if name not in self.manifest["files"]:
            raise InspectError(f"entry {self.digest} holds no StableHLO", remedy="it was made by something else than torch.compile")
        return stablehlo_text((self.path / name).read_bytes())

    @property
    def neff(self) -> dict[str, Any] | None:
        """What the entry's NEFF says of itself, as `neff.describe` tells it, None for an entry that holds none.

        Raises CompilerError or NeffError where it is damaged, OSError if it is gone.
        """
        from neuron_dynamo import neff
        from neuron_dynamo.compilers.neuronx import artifact

        if self.kind != "artifact":
            return None
        with (self.path / PAYLOAD).open("rb") as file:
            if not artifact.is_packed(file.read(len(artifact.MAGIC))):
                return None
        return neff.describe(artifact.unpack((self.path / PAYLOAD).read_bytes()).neff)

    def to_json(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "kind": self.kind,
            "path": str(self.path),
            "size": self.size,
            "created": self.created,
            "used": self.used,
            "manifest": self.manifest,
        }


def cache_root(cache_dir: str | os.PathLike[str] | None) -> Path:
    """The directory that is meant: the one given, else what NEURON_DYNAMO_CACHE_DIR says, else the default."""
    return Options.resolve({"cache_dir": cache_dir} if cache_dir is not None else None).cache_path


def entries(
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
    kind: str | None = None,
    digest: str = "",
    older: float | None = None,
    newer: float | None = None,
    order: str = "created",
) -> tuple[Entry, ...]:
    """Entries of the cache directory, newest first; those with a damaged manifest, which is never used, are left out.

    `target` and `kind` (one of KINDS) select, as do the beginning of a `digest` and the age in seconds (`older` than, `newer` than).
    `order` is one of ORDERS: the newest, largest or costliest come first.
    """
    for name, value, choices in (("kind", kind, KINDS), ("order", order, ORDERS)):
        if value is not None and value not in choices:
            raise InspectError(f"{name} is {value!r}", remedy=f"valid values are {', '.join(choices)}")
    now = time.time()
    found = [
        entry
        for entry in _entries(cache_root(cache_dir))
        if (target is None or entry.target == target)
        and (kind is None or entry.kind == kind)
        and entry.digest.startswith(digest.lower())
        and (older is None or now - entry.created > older)
        and (newer is None or now - entry.created < newer)
    ]
    found.sort(key=lambda entry: (-entry.created, entry.digest))
    if order == "target":
        found.sort(key=lambda entry: (entry.target, entry.compiler))
    elif order != "created":
        found.sort(key=lambda entry: -float(getattr(entry, order)))
    return tuple(found)


def show(digest: str, cache_dir: str | os.PathLike[str] | None = None) -> Entry:
    """The entry whose digest begins with `digest`. Raises InspectError unless there is exactly one."""
    found = entries(cache_dir, digest=digest)
    if len(found) != 1:
        path = cache_root(cache_dir)
        what = f"{len(found)} entries begin with {digest!r}" if found else f"no entry of {path} begins with {digest!r}"
        raise InspectError(what, remedy="give enough of a digest that 'neuron-dynamo cache ls' lists")
    return found[0]


def entry_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """(digest, path) of all that has the place of an entry, whatever its state, in order of digests."""
    for path in sorted(layout.version_folder(root).glob("[0-9a-f][0-9a-f]/*")):
        if layout.DIGEST.fullmatch(path.name) and path.name.startswith(path.parent.name):
            yield path.name, path


def read_entry(path: Path) -> Entry:
    """The entry in the folder `path`, its files not looked at. Raises BadEntry, or OSError where there is none."""
    manifest = decode_manifest(read_manifest(path))
    try:
        key = CacheKey.from_json(manifest["key"])
        size = sum(int(file["size"]) for file in manifest["files"].values())
        entry = Entry(key, path, size, (path / MANIFEST).stat().st_mtime, path.stat().st_mtime, manifest)
        _ = entry.seconds
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadEntry("its manifest lacks a field") from error
    if key.digest != path.name:
        raise BadEntry("it belongs to another key")
    return entry


def _entries(root: Path) -> Iterator[Entry]:
    for _, path in entry_folders(root):
        with contextlib.suppress(OSError, BadEntry):  # it may be replaced or damaged at any moment
            yield read_entry(path)
