"""Reads NEFFs, the files that neuronx-cc makes: header, tarball, inputs and outputs. Unpacks nothing onto the disk.

Follows the page "Work with NEFF Files" of the AWS Neuron documentation (SDK 2.32): a header of 1024 bytes, then a tarball, gzipped
or plain, with one `def.json` for each subgraph. The header has no magic number, its hash no published algorithm; what is wrong
with a file shows in its sizes, in gzip's own checksum and in its JSON.
"""

from __future__ import annotations

import io
import json
import re
import struct
import tarfile
import zlib
from dataclasses import dataclass
from typing import IO, Any

from neuron_dynamo.errors import NeffError

HEADER_SIZE = 1024
_HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI468x")
_GZIP = b"\x1f\x8b"

_MAX_MEMBERS = 100_000
_MAX_DEFINITION = 256 << 20
_MAX_METADATA = 1 << 20
_MAX_RATIO = 200
_FREE_SIZE = 1 << 30
"""Limits for hostile files: members, bytes of a def.json, bytes of a tar header's extension; unpacked size over packed size, of interest
only past `_FREE_SIZE` bytes."""

_DEFINITION = re.compile(r"(?:.*/)?(sg\d+)/def\.json")
_METADATA_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


@dataclass(frozen=True)
class Header:
    """The fields of a NEFF's header that have a published meaning. `lnc_size` is 0 where the compiler left it out."""

    pkg_version: int
    data_size: int
    version: tuple[int, int]
    compiler: str
    cores: int
    hash: str
    uuid: str
    name: str
    requested_cores: int
    feature_bits: int
    lnc_size: int


@dataclass(frozen=True)
class NeffTensor:
    """An input or output as a subgraph declares it; `size` in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Neff:
    """What a NEFF says of itself. `members` are (name, bytes) of its tarball; tensors of numbered names come in their order."""

    header: Header
    size: int
    compressed: bool
    members: tuple[tuple[str, int], ...]
    subgraphs: tuple[str, ...]
    inputs: tuple[NeffTensor, ...]
    outputs: tuple[NeffTensor, ...]


def read_header(data: bytes) -> Header:
    """The header of a NEFF. Raises NeffError where `data` does not begin with one."""
    if len(data) < HEADER_SIZE:
        raise _bad(f"it has {len(data)} bytes, less than the header alone")
    fields = _HEADER.unpack_from(data)
    package, header_size, data_size, major, minor, compiler, cores, digest, uuid, name, requested, _, features, lnc = fields
    if header_size != HEADER_SIZE:
        raise _bad(f"its header gives its own size as {header_size}, not {HEADER_SIZE}")
    return Header(
        pkg_version=package,
        data_size=data_size,
        version=(major, minor),
        compiler=_text(compiler),
        cores=cores,
        hash=digest.hex(),
        uuid=uuid.hex(),
        name=_text(name),
        requested_cores=requested,
        feature_bits=features,
        lnc_size=lnc,
    )


def read(data: bytes) -> Neff:
    """All of a NEFF's own description. Raises NeffError (ND024) for anything that is cut short, damaged, too large or no NEFF."""
    header = read_header(data)
    compressed = data[HEADER_SIZE : HEADER_SIZE + 2] == _GZIP
    members: dict[str, int] = {}
    tensors: dict[str, dict[str, int]] = {"input": {}, "output": {}}
    subgraphs: list[str] = []
    for member, content in _members(data, compressed):
        name = _printable(member.name)
        if name in members:
            raise _bad(f"its tarball has {name} twice")
        members[name] = member.size
        if len(members) > _MAX_MEMBERS:
            raise _bad(f"its tarball has more than {_MAX_MEMBERS} files")
        if _DEFINITION.fullmatch(member.name) and content is not None:
            subgraphs.append(name.removesuffix("/def.json"))
            _collect(name, content, tensors)
    if not subgraphs:
        raise _bad("its tarball has no sgNN/def.json")
    return Neff(
        header=header,
        size=len(data),
        compressed=compressed,
        members=tuple(members.items()),
        subgraphs=tuple(subgraphs),
        inputs=_ordered(tensors["input"]),
        outputs=_ordered(tensors["output"]),
    )


def describe(data: bytes) -> dict[str, Any]:
    """`read` as JSON-able data, for reports. Sizes in bytes. Raises NeffError."""
    neff = read(data)
    header = neff.header
    return {
        "name": header.name,
        "compiler": header.compiler,
        "neff_version": f"{header.version[0]}.{header.version[1]}",
        "pkg_version": header.pkg_version,
        "lnc_size": header.lnc_size,
        "cores": header.cores,
        "uuid": header.uuid,
        "hash": header.hash,
        "feature_bits": header.feature_bits,
        "size": neff.size,
        "data_size": header.data_size,
        "compressed": neff.compressed,
        "subgraphs": list(neff.subgraphs),
        "inputs": [{"name": tensor.name, "size": tensor.size} for tensor in neff.inputs],
        "outputs": [{"name": tensor.name, "size": tensor.size} for tensor in neff.outputs],
        "members": [{"name": name, "size": size} for name, size in neff.members],
    }


def _bad(what: str) -> NeffError:
    return NeffError(f"the NEFF cannot be read: {what}", remedy="compile the graph again")


def _text(field: bytes) -> str:
    return _printable(field.partition(b"\0")[0].decode("utf-8", "replace"))


def _printable(text: str) -> str:
    """`text` without what could move a terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)


class _Member(tarfile.TarInfo):
    """A tar header, stricter than tarfile's: a damaged one further on is an error and no silent end, and an extension (long names,
    PAX) may not be larger than any name could need, for tarfile holds it in memory."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Any:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the zeros at the end
            raise
        except tarfile.HeaderError as error:
            raise _bad(f"its tarball is cut short or damaged ({error})") from error

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _METADATA_TYPES and self.size > _MAX_METADATA:
            raise _bad(f"a header of its tarball claims {self.size} bytes")
        result: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return result


class _Limited(io.RawIOBase):
    """The unpacked tarball as a stream that ends with an error past `limit` bytes, or where gzip ends too early."""

    def __init__(self, data: bytes, compressed: bool, limit: int) -> None:
        self._source = memoryview(data)
        self._inflate = zlib.decompressobj(wbits=31) if compressed else None
        self._position, self.total, self._limit, self._rest = HEADER_SIZE, 0, limit, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = size if size >= 0 else 1 << 20
        block = self._plain(size) if self._inflate is None else self._inflated(size)
        self.total += len(block)
        if self.total > self._limit:
            raise _bad(f"its tarball unpacks to more than {self._limit} bytes")
        return block

    def _plain(self, size: int) -> bytes:
        block = bytes(self._source[self._position : self._position + size])
        self._position += len(block)
        return block

    def _inflated(self, size: int) -> bytes:
        assert self._inflate is not None
        parts: list[bytes] = []
        wanted = size
        while wanted and not self._inflate.eof:
            packed = self._rest or self._plain(1 << 16)
            part = self._inflate.decompress(packed, wanted)
            if not packed and not part:
                raise _bad("its tarball is cut short")
            self._rest = self._inflate.unconsumed_tail
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)


def _members(data: bytes, compressed: bool) -> list[tuple[tarfile.TarInfo, bytes | None]]:
    """Every member of the tarball, with the content of those that are some subgraph's def.json."""
    limit = max(_FREE_SIZE, _MAX_RATIO * len(data))
    stream: Any = _Limited(data, compressed, limit)
    found: list[tuple[tarfile.TarInfo, bytes | None]] = []
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                content = None
                if member.isreg() and _DEFINITION.fullmatch(member.name):
                    if member.size > _MAX_DEFINITION:
                        raise _bad(f"{_printable(member.name)} claims {member.size} bytes")
                    file: IO[bytes] | None = archive.extractfile(member)
                    content = file.read() if file else b""
                    if len(content) != member.size:
                        raise _bad("its tarball is cut short")
                found.append((member, content))
                archive.members.clear()  # type: ignore[attr-defined]  # a stream never goes back, and tarfile would keep every header
                if len(found) > _MAX_MEMBERS:
                    break
        while stream.read():  # to gzip's checksum
            pass
        if any(member.offset_data + member.size > stream.total for member, _ in found if member.isreg()):
            raise _bad("its tarball is cut short")
    except (tarfile.TarError, zlib.error, EOFError, OverflowError, ValueError, RecursionError) as error:
        raise _bad(f"its tarball is damaged ({error})") from error
    return found


def _collect(name: str, content: bytes, tensors: dict[str, dict[str, int]]) -> None:
    """Adds the inputs and outputs that a def.json declares; subgraphs of one program share them."""
    try:
        variables = json.loads(content)["var"]
        for variable, description in variables.items():
            kind, size = description["type"], description["size"]
            if kind in tensors:
                if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                    raise ValueError(f"{variable} has size {size!r}")
                tensors[kind].setdefault(_printable(variable), size)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _bad(f"{name} is not as documented ({type(error).__name__}: {error})") from error


def _ordered(tensors: dict[str, int]) -> tuple[NeffTensor, ...]:
    """By name, numbers in it by their value: input2 before input10."""

    def order(item: tuple[str, int]) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]{1,18})", item[0])]

    return tuple(NeffTensor(name, size) for name, size in sorted(tensors.items(), key=order))
