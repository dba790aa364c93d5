"""Entries of a cache in one file, to be carried to another machine, user or path. Equal entries make equal bytes.

A tar, uncompressed (artifacts hardly compress, and nothing can be bigger than the file says):
    neuron_dynamo_bundle.json       the bundle's version
    entries/<digest>/<file>         files of each entry, the manifest first, digests in order
    index.json                      digests of all entries, last: a bundle without it was cut off
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from neuron_dynamo.cache.entry import (
    MANIFEST,
    MAX_ENTRY,
    MAX_MANIFEST,
    Artifact,
    BadEntry,
    decode_manifest,
    encode_entry,
    manifest_checksum,
)
from neuron_dynamo.cache.key import FORMAT, CacheKey
from neuron_dynamo.cache.listing import Entry, cache_root, entries
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.verify import check_entry
from neuron_dynamo.errors import BundleError, InspectError

if TYPE_CHECKING:
    from neuron_dynamo.report import GraphReport

BUNDLE_FORMAT = 1

_HEADER = "neuron_dynamo_bundle.json"
_INDEX = "index.json"
_MEMBER = re.compile(r"entries/([0-9a-f]{64})/([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True)
class Exported:
    """Digests of the entries that the bundle at `path` holds, its bytes, and (digest, reason) of entries that were left out."""

    path: Path
    digests: tuple[str, ...]
    size: int
    skipped: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "digests": list(self.digests), "size": self.size, "skipped": list(map(list, self.skipped))}


@dataclass(frozen=True)
class Imported:
    """Digests of entries that were `new`, that the cache had already, and (digest or member, reason) of what was `refused`."""

    root: Path
    new: tuple[str, ...]
    present: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "cache_dir": str(self.root),
            "new": list(self.new),
            "present": list(self.present),
            "refused": list(map(list, self.refused)),
        }


def export(
    path: str | os.PathLike[str],
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
    digests: Iterable[str] | None = None,
    graphs: Iterable[GraphReport] | None = None,
) -> Exported:
    """Write entries of the cache directory into the file `path`, which appears at once and whole.

    All of them but remembered failures, or those that a filter names: `target`, the beginnings of `digests`, and `graphs`, such as
    `neuron_dynamo.reports()` of a run. Every entry is verified first; a damaged one is left out and named in the result.
    Raises InspectError for a digest that the cache does not have, OSError where `path` cannot be written.
    """
    chosen = [entry for entry in entries(cache_dir, target=target) if entry.kind != "failure"]
    wanted = _wanted(digests, graphs)
    if wanted is not None:
        absent = [start for start in wanted if not any(entry.digest.startswith(start) for entry in chosen)]
        if absent:
            raise InspectError(
                f"the cache directory {cache_root(cache_dir)} has no entry {absent[0]}",
                remedy="'neuron-dynamo cache ls' lists what it has",
            )
        chosen = [entry for entry in chosen if entry.digest.startswith(tuple(wanted))]
    destination = Path(path)
    draft = destination.with_name(f".{destination.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    try:
        with open(draft, "xb") as file:
            written, skipped = write_bundle(file, sorted(chosen, key=lambda entry: entry.digest))
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, destination)
    finally:
        draft.unlink(missing_ok=True)
    return Exported(destination, written, size, skipped)


def _wanted(digests: Iterable[str] | None, graphs: Iterable[GraphReport] | None) -> list[str] | None:
    if digests is None and graphs is None:
        return None
    wanted = [digest.lower() for digest in digests or ()]
    if not all(wanted):
        raise InspectError("an empty digest names every entry", remedy="leave digests out to export them all")
    for graph in graphs or ():
        wanted += [program.key for program in graph.programs if program.key]
    return list(dict.fromkeys(wanted))


def write_bundle(file: IO[bytes], chosen: Sequence[Entry]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Write `chosen` (in order of digests); returns the digests written, and (digest, reason) of those that are damaged or gone."""
    written: list[str] = []
    skipped: list[tuple[str, str]] = []
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, _HEADER, _json({"bundle": BUNDLE_FORMAT, "entry_format": FORMAT}))
        for entry in chosen:
            try:
                key, artifact = check_entry(entry.digest, lambda name, limit, entry=entry: (entry.path / name).read_bytes())  # type: ignore[misc]
            except (BadEntry, OSError) as error:
                skipped.append((entry.digest, str(error)))
                continue
            _add_entry(tar, key, artifact)
            written.append(entry.digest)
        _add(tar, _INDEX, _json({"entries": written}))
    return tuple(written), tuple(skipped)


def pack(key: CacheKey, artifact: Artifact) -> bytes:
    """A bundle of one entry."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, _HEADER, _json({"bundle": BUNDLE_FORMAT, "entry_format": FORMAT}))
        _add_entry(tar, key, artifact)
        _add(tar, _INDEX, _json({"entries": [key.digest]}))
    return file.getvalue()


def _add_entry(tar: tarfile.TarFile, key: CacheKey, artifact: Artifact) -> None:
    files = encode_entry(key, artifact)
    manifest = json.loads(files[MANIFEST])
    manifest.pop("made", None)  # when and by whom differs between machines, and would between two equal bundles
    manifest.pop("sha256")
    manifest["sha256"] = manifest_checksum(manifest)
    files[MANIFEST] = json.dumps(manifest, indent=1).encode()
    for name in (MANIFEST, *sorted(files.keys() - {MANIFEST})):
        _add(tar, f"entries/{key.digest}/{name}", files[name])


def import_(path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> Imported:
    """Merge the entries of the bundle `path` into the cache directory; an intact entry that is there already stays.

    Each entry is verified, then published in one step, so nothing is ever half there; a bad one is refused, and the others go on.
    Raises BundleError for a file that is no bundle or of a newer version, OSError where it cannot be read.
    """
    store = LocalStore(cache_root(cache_dir))
    new: list[str] = []
    present: list[str] = []
    refused: list[tuple[str, str]] = []
    with open(path, "rb") as file:
        for digest, outcome in read_bundle(file, str(path)):
            if isinstance(outcome, str):
                refused.append((digest, outcome))
                continue
            key, artifact = outcome
            try:
                (new if publish(store, key, artifact) else present).append(digest)
            except OSError as error:
                refused.append((digest, f"it could not be written: {error}"))
    return Imported(store.root, tuple(new), tuple(present), tuple(refused))


def publish(store: LocalStore, key: CacheKey, artifact: Artifact) -> bool:
    """Whether `artifact` is new to the store. A damaged entry in its place is put aside. Raises OSError."""
    try:
        if store.read(key) is not None:
            return False
    except BadEntry:
        with contextlib.suppress(FileNotFoundError):
            store.quarantine(key)
    return bool(store.write(key, artifact))


def read_bundle(file: IO[bytes], name: str) -> Iterator[tuple[str, tuple[CacheKey, Artifact] | str]]:
    """(digest, its verified key and contents), or (digest or member name, the reason why it is refused), in the bundle's order.

    Raises BundleError for a file that is no bundle or of a newer version. Nothing is ever unpacked by a name in the file.
    """
    try:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - closed with the file
        first = tar.next()
    except (tarfile.TarError, OSError, ValueError) as error:
        raise BundleError(f"{name} is not a bundle: {error}", remedy=_REMEDY) from error
    if first is None or first.name != _HEADER or not first.isreg() or first.size > 4096:
        raise BundleError(f"{name} is not a bundle: it does not begin as one", remedy=_REMEDY)
    _check_version(_contents(tar, first), name)
    yield from _entries(tar, file)


def bundled_keys(path: Path) -> Iterator[CacheKey]:
    """Keys that the manifests in a bundle state, the entries themselves not looked at. Raises BundleError, BadEntry or OSError."""
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                match = _MEMBER.fullmatch(member.name)
                if match and match[2] == MANIFEST and member.isreg() and member.size <= MAX_MANIFEST:
                    yield CacheKey.from_json(decode_manifest(_contents(tar, member))["key"])
    except (tarfile.TarError, ValueError, LookupError, TypeError) as error:
        raise BundleError(f"{path} is not a bundle: {error}", remedy=_REMEDY) from error


_REMEDY = "give a file that 'neuron-dynamo cache export' wrote"


def _check_version(header: bytes, name: str) -> None:
    try:
        version = json.loads(header)["bundle"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BundleError(f"{name} is not a bundle: its header cannot be read", remedy=_REMEDY) from error
    if version != BUNDLE_FORMAT:
        raise BundleError(f"{name} is a bundle of version {version!r}, this is {BUNDLE_FORMAT}", remedy="export it again with this version")


def _entries(tar: tarfile.TarFile, file: IO[bytes]) -> Iterator[tuple[str, tuple[CacheKey, Artifact] | str]]:
    length = os.fstat(file.fileno()).st_size if _has_descriptor(file) else file.seek(0, io.SEEK_END)
    done: set[str] = set()
    current, files = "", {}  # type: str, dict[str, bytes]
    index: set[str] | None = None
    try:
        while (member := tar.next()) is not None:
            match = _MEMBER.fullmatch(member.name)
            if not member.isreg() or member.issparse():
                yield member.name, "it is not a plain file"
            elif member.size < 0 or member.offset_data + member.size > length:
                yield member.name, "it is cut off"
            elif member.name == _INDEX and index is None:
                index = _index(_contents(tar, member)) if member.size < 2**28 else set()
            elif match is None:
                yield member.name, "a bundle has no such member"
            else:
                digest, name = match.groups()
                if digest != current:
                    if files:
                        done.add(current)
                        yield current, _checked(current, files)
                    current, files = digest, {}
                if digest in done or name in files:
                    yield member.name, "it is there twice"
                elif member.size + sum(map(len, files.values())) > MAX_ENTRY:
                    yield member.name, f"its entry is larger than {MAX_ENTRY} bytes"
                else:
                    files[name] = _contents(tar, member)
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        yield "bundle", f"the rest cannot be read: {error}"
    if files:
        done.add(current)
        yield current, _checked(current, files)
    if index is None:
        yield "bundle", "it ends early: its index is missing"
    else:
        for digest in sorted(index - done):
            yield digest, "the index names it, but it is not there"


def _has_descriptor(file: IO[bytes]) -> bool:
    with contextlib.suppress(OSError):
        file.fileno()
        return True
    return False


def _checked(digest: str, files: dict[str, bytes]) -> tuple[CacheKey, Artifact] | str:
    try:
        return check_entry(digest, lambda name, limit: files[name])
    except BadEntry as error:
        return str(error)
    except KeyError as error:
        return f"{error.args[0]} is missing"


def _index(data: bytes) -> set[str]:
    with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
        return {str(digest) for digest in json.loads(data)["entries"]}
    return set()


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    data = file.read() if file is not None else b""
    if len(data) != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return data


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # no times, owners or modes of this machine
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _json(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True).encode()
