"""Artifact: what a compiler made of one Program, and the manifest that describes it on disk."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuron_dynamo.cache.key import FORMAT, CacheKey
from neuron_dynamo.lowering.program import Signature
from neuron_dynamo.version import __version__

MANIFEST = "manifest.json"
PAYLOAD = "artifact.bin"
PROGRAM = "program.mlir.bc"
"""Blob that holds the StableHLO portable artifact behind an entry."""

MAX_MANIFEST = 16 * 2**20
"""Bytes of the longest manifest that is looked at."""

MAX_ENTRY = 8 * 2**30
"""Bytes of all files that a manifest may announce: an entry is read as a whole."""

Read = Callable[[str, int], bytes]
"""Returns a file of an entry by its name. One longer than the given number of bytes cannot be the right one, and need not be read."""

_BLOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class BadEntry(Exception):
    """An entry is corrupt, foreign, of another format or not the one asked for; the text says which.

    `identity` is LocalStore's of the entry, where known: another may have the place by now.
    """

    identity: tuple[int, int] | None = None


class ForeignEntry(BadEntry):
    """An entry is of a newer format or of an untrusted user: it is not used, and is not ours to remove."""


@dataclass(frozen=True)
class Artifact:
    """Compiled bytes (NEFF or host executable) with their signature.

    `timings` are seconds by stage; `log` is the compiler's own; `blobs` are further files of the entry by file name.
    Raises ValueError for a blob name that is not a plain file name of its own.
    """

    payload: bytes = field(repr=False)
    signature: Signature
    timings: Mapping[str, float] = field(default_factory=dict)
    log: str = field(default="", repr=False)
    blobs: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in self.blobs:
            if not _BLOB_NAME.fullmatch(name) or name in (MANIFEST, PAYLOAD):
                raise ValueError(f"{name!r} cannot name a blob of an artifact")

    @property
    def size(self) -> int:
        """Bytes of the payload and all blobs."""
        return len(self.payload) + sum(map(len, self.blobs.values()))


def encode_entry(key: CacheKey, artifact: Artifact) -> dict[str, bytes]:
    """Files of the entry by name, the manifest last; that says when (seconds since the epoch) and by which version it was made."""
    contents = {PAYLOAD: artifact.payload, **artifact.blobs}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "digest": key.digest,
        "key": key.to_json(),
        "signature": artifact.signature.to_json(),
        "files": {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in contents.items()},
        "timings": dict(artifact.timings),
        "log": artifact.log,
        "made": {"at": int(time.time()), "by": f"neuron_dynamo {__version__}"},
    }
    manifest["sha256"] = manifest_checksum(manifest)
    return {**contents, MANIFEST: json.dumps(manifest, indent=1).encode()}


def decode_manifest(data: bytes) -> dict[str, Any]:
    """The manifest that `data` holds. Raises ForeignEntry if it is of a newer format, BadEntry unless it is intact and of this one."""
    try:
        manifest = json.loads(data)
        if type(manifest["format"]) is int and manifest["format"] > FORMAT:
            raise ForeignEntry(f"its format is {manifest['format']}, which is newer than {FORMAT}")
        if manifest["format"] != FORMAT:
            raise BadEntry(f"its format is {manifest['format']!r}, not {FORMAT}")
        if manifest.pop("sha256") != manifest_checksum(manifest):
            raise BadEntry("its manifest does not match its checksum")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadEntry("its manifest cannot be read") from error
    return manifest  # type: ignore[no-any-return]


def decode_entry(key: CacheKey, read: Read) -> Artifact:
    """The artifact of the entry whose files `read` returns by name. Raises BadEntry, or what `read` raises."""
    manifest = decode_manifest(read(MANIFEST, MAX_MANIFEST))
    try:
        if CacheKey.from_json(manifest["key"]).digest != key.digest:
            raise BadEntry("it belongs to another key")
        signature = Signature.from_json(manifest["signature"])
        timings = {str(stage): float(seconds) for stage, seconds in manifest["timings"].items()}
        checksums = {name: (description["sha256"], description["size"]) for name, description in manifest["files"].items()}
        if PAYLOAD not in checksums or not all(_BLOB_NAME.fullmatch(name) for name in checksums):
            raise BadEntry("its list of files is wrong")
        if not all(type(size) is int and size >= 0 for _, size in checksums.values()):
            raise BadEntry("its list of files is wrong")
        if sum(size for _, size in checksums.values()) > MAX_ENTRY:
            raise BadEntry("it announces more bytes than an entry can have")
        log = str(manifest["log"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BadEntry("its manifest lacks a field") from error
    contents = {}
    for name, (checksum, size) in checksums.items():
        data = read(name, size)
        if len(data) != size or hashlib.sha256(data).hexdigest() != checksum:
            raise BadEntry(f"{name} does not match its checksum")
        contents[name] = data
    return Artifact(contents.pop(PAYLOAD), signature, timings, log, contents)


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over all of a manifest but its own `sha256`."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
