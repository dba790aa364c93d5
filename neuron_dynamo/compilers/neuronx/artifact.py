"""What the cache keeps of a compile for a Neuron target: the NEFF, and the program, for machines without a device."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from dataclasses import dataclass, field
from typing import Any

from neuron_dynamo.errors import CompilerError

MAGIC = b"NDNEFF1\n"
_HEADER_SIZE = 1024
_GZIP = b"\x1f\x8b"
_CHUNK = 2**16
_AGAIN = "compile the graph again"


@dataclass(frozen=True)
class NeuronArtifact:
    """A NEFF and the StableHLO portable artifact that it was compiled from; `target`, `lnc` and `version` are its compile's."""

    neff: bytes = field(repr=False)
    stablehlo: bytes = field(repr=False)
    target: str
    lnc: int
    version: str

    def pack(self) -> bytes:
        """One line of magic, one line of JSON, the NEFF, the StableHLO."""
        facts = {"target": self.target, "lnc": self.lnc, "version": self.version}
        header = {**facts, "neff": len(self.neff), "stablehlo": len(self.stablehlo), "crc32": _checksum(self.neff, self.stablehlo)}
        return b"".join((MAGIC, json.dumps(header, sort_keys=True).encode(), b"\n", self.neff, self.stablehlo))


def is_packed(beginning: bytes) -> bool:
    """Whether an artifact that begins so (with len(MAGIC) bytes or more) holds a NEFF; others are the host target's."""
    return beginning.startswith(MAGIC)


def unpack(payload: bytes) -> NeuronArtifact:
    """The inverse of `pack`. Raises CompilerError for bytes that are damaged or none of ours."""
    line, newline, rest = payload[len(MAGIC) :].partition(b"\n")
    if not is_packed(payload) or not newline:
        raise CompilerError("the artifact is corrupt: it does not begin as a Neuron artifact does", remedy=_AGAIN)
    try:
        header: dict[str, Any] = json.loads(line)
        size = int(header["neff"])
        neff, stablehlo = rest[:size], rest[size:]
        made = NeuronArtifact(neff, stablehlo, header["target"], header["lnc"], header["version"])
        intact = len(stablehlo) == header["stablehlo"] and _checksum(neff, stablehlo) == header["crc32"]
    except (ValueError, LookupError, TypeError) as error:
        raise CompilerError("the artifact is corrupt: its header cannot be read", remedy=_AGAIN) from error
    if not intact:
        raise CompilerError("the artifact is corrupt: its checksum does not match", remedy=_AGAIN)
    return made


def neff_trouble(neff: bytes) -> str:
    """Why these bytes cannot be a whole NEFF, "" if they can: the header's own size, and an archive that can be read to its end."""
    if not neff:
        return "it is empty"
    if len(neff) <= _HEADER_SIZE:
        return f"it has {len(neff)} bytes, and a NEFF's header alone has {_HEADER_SIZE}"
    (size,) = struct.unpack_from("<Q", neff, 8)
    if size != _HEADER_SIZE:
        return f"its header says that it has {size} bytes, not {_HEADER_SIZE}"
    body = memoryview(neff)[size:]
    try:
        if bytes(body[:2]) == _GZIP and not _whole_gzip(body):
            return "its archive cannot be read: it ends early"
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            empty = not archive.getnames()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        return f"its archive cannot be read: {error}"
    return "its archive is empty" if empty else ""


def _whole_gzip(body: memoryview) -> bool:
    """Whether a gzip stream reaches its end, checksum and all; in little memory. Raises zlib.error where it is damaged."""
    stream = zlib.decompressobj(wbits=31)
    for start in range(0, len(body), _CHUNK):
        stream.decompress(body[start : start + _CHUNK])
    return stream.eof


def _checksum(neff: bytes, stablehlo: bytes) -> int:
    return zlib.crc32(stablehlo, zlib.crc32(neff))
