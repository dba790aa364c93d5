"""The NEFF reader against synthetic files of the published layout: what it reads, and that nothing damaged gets through."""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
import zlib

import pytest
import torch

from neuron_dynamo import neff
from neuron_dynamo.errors import CompilerError, NeffError
from tests.doubles.neff import Tensor, with_header, write_neff
from tests.doubles.neff_writer import archive

INPUTS = [Tensor(f"input{i}", (2, 3)) for i in range(12)]
OUTPUTS = [Tensor("output0", (), torch.bool), Tensor("output1", (4,), torch.bfloat16)]
GOOD = write_neff(INPUTS, OUTPUTS, lnc=2)


def refusal(data: bytes) -> str:
    with pytest.raises(NeffError) as caught:
        neff.read(data)
    assert caught.value.code == "ND024" and isinstance(caught.value, CompilerError) and not caught.value.transient
    return caught.value.what


def with_members(members: dict[str, bytes]) -> bytes:
    return with_header(archive(members))


def test_what_is_read() -> None:
    read = neff.read(GOOD)
    assert (read.header.compiler, read.header.version, read.header.lnc_size, read.header.cores) == ("fake", (2, 0), 2, 1)
    assert (read.header.name, read.header.pkg_version, read.header.data_size) == ("fake.neff", 2, len(GOOD) - 1024)
    assert len(read.header.hash) == 64 and len(read.header.uuid) == 32 and read.compressed and read.size == len(GOOD)
    assert [tensor.name for tensor in read.inputs] == [f"input{i}" for i in range(12)], "input2 comes before input10"
    assert {tensor.size for tensor in read.inputs} == {24}
    assert [(tensor.name, tensor.size) for tensor in read.outputs] == [("output0", 1), ("output1", 8)]
    assert read.subgraphs == ("sg00",) and {"kelf-a.json", "sg00/def.json"} <= dict(read.members).keys()


def test_each_field_is_at_its_published_offset() -> None:
    data = bytearray(GOOD)
    struct.pack_into("<Q", data, 0, 7)
    struct.pack_into("<QQ", data, 24, 3, 9)
    data[40:46] = b"9.9\0xx"
    struct.pack_into("<I", data, 168, 5)
    data[172:204] = bytes(range(32))
    data[204:220] = bytes(range(16))
    data[220:224] = b"abc\0"
    struct.pack_into("<I", data, 476, 6)
    struct.pack_into("<Q", data, 544, 1 << 40)
    struct.pack_into("<I", data, 552, 1)
    fields = neff.read_header(bytes(data))
    assert (fields.pkg_version, fields.version, fields.compiler, fields.cores) == (7, (3, 9), "9.9", 5)
    assert (fields.hash, fields.uuid, fields.name) == (bytes(range(32)).hex(), bytes(range(16)).hex(), "abc")
    assert (fields.requested_cores, fields.feature_bits, fields.lnc_size) == (6, 1 << 40, 1)


def test_description_is_json() -> None:
    described = json.loads(json.dumps(neff.describe(GOOD)))
    assert described["lnc_size"] == 2 and described["neff_version"] == "2.0" and described["size"] == len(GOOD)
    assert described["outputs"] == [{"name": "output0", "size": 1}, {"name": "output1", "size": 8}]
    assert {"name": "sg00/def.json", "size": dict(neff.read(GOOD).members)["sg00/def.json"]} in described["members"]


def test_a_plain_archive() -> None:
    plain = neff.read(write_neff(INPUTS, OUTPUTS, compress=False))
    assert not plain.compressed and plain.inputs == neff.read(GOOD).inputs


def test_subgraphs_of_two_physical_cores() -> None:
    definition = json.dumps({"var": {"input0": {"type": "input", "var_id": 1, "size": 4}}}).encode()
    read = neff.read(with_members({"nc00/sg00/def.json": definition, "nc01/sg01/def.json": definition}))
    assert read.subgraphs == ("nc00/sg00", "nc01/sg01") and [tensor.name for tensor in read.inputs] == ["input0"]


@pytest.mark.parametrize("plain", [False, True])
def test_every_truncation_is_noticed(plain: bool) -> None:
    whole = write_neff(INPUTS, OUTPUTS, compress=not plain)
    end = len(whole) if not plain else whole.rindex(b"}") + 1  # a plain tar ends with zeros that mean nothing
    for length in [*range(0, end, 97), end - 1]:
        refusal(whole[:length])


def test_damage_is_noticed() -> None:
    """Some flipped bits unpack to the very same bytes (a run of zeros copied from another place): those do no harm."""
    generator, refused = random.Random(5), 0
    for _ in range(200):
        data = bytearray(GOOD)
        data[generator.randrange(1034, len(data))] ^= 1 << generator.randrange(8)
        try:
            assert neff.read(bytes(data)).members == neff.read(GOOD).members
            assert zlib.decompress(data[1024:], wbits=31) == zlib.decompress(GOOD[1024:], wbits=31)
        except NeffError:
            refused += 1
    assert refused > 150


def test_garbage_never_escapes_as_another_error() -> None:
    generator = random.Random(7)
    assert "less than the header" in refusal(b"")
    assert "its own size" in refusal(bytes(4096))
    for size in (1024, 1025, 1536, 5000):
        refusal(GOOD[:1024] + generator.randbytes(size))
    refusal(GOOD[:1024] + b"\x1f\x8b" + generator.randbytes(1000))


@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"var": []}',
        b'{"var": {"input0": 3}}',
        b'{"var": {"input0": {"type": "input"}}}',
        b'{"var": {"input0": {"type": "input", "size": -1}}}',
        b'{"var": {"input0": {"type": "input", "size": true}}}',
        b"[" * 100_000,
    ],
)
def test_definitions_that_are_none(definition: bytes) -> None:
    assert "sg00/def.json" in refusal(with_members({"sg00/def.json": definition}))


def test_a_tarball_without_a_definition() -> None:
    assert "no sgNN/def.json" in refusal(with_members({"kelf-a.json": b"{}"}))


def test_hostile_tarballs(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = json.dumps({"var": {}}).encode()
    # Names are shown, never used as paths; links and devices are never followed.
    names = neff.read(with_members({"../../etc/passwd": b"x", "/abs": b"x", "a\x1b[2J": b"x", "sg00/def.json": definition})).members
    assert [name for name, _ in names] == ["../../etc/passwd", "/abs", "a?[2J", "sg00/def.json"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        link = tarfile.TarInfo("sg00/def.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert "no sgNN/def.json" in refusal(with_header(buffer.getvalue()))

    twice = archive({"sg00/def.json": definition}, compress=False)[:1024] + archive({"sg00/def.json": definition}, compress=False)
    assert "twice" in refusal(with_header(twice))

    extension = tarfile.TarInfo("pax")
    extension.type, extension.size = tarfile.XHDTYPE, 1 << 40
    block = extension.tobuf(tarfile.GNU_FORMAT)
    assert "claims" in refusal(with_header(block))
    large = tarfile.TarInfo("sg00/def.json")
    large.size = 1 << 40
    block = large.tobuf(tarfile.GNU_FORMAT)
    assert "claims" in refusal(with_header(block))

    monkeypatch.setattr(neff, "_FREE_SIZE", 1 << 16)
    bomb = with_members({"sg00/def.json": definition, "zeros": bytes(1 << 22)})
    assert "unpacks to more" in refusal(bomb)
    monkeypatch.setattr(neff, "_MAX_MEMBERS", 3)
    assert "more than 3 files" in refusal(with_members({str(i): b"" for i in range(5)}))


def test_bytes_after_the_tarball_do_not_matter_but_broken_gzip_does() -> None:
    assert neff.read(GOOD + b"padding").inputs == neff.read(GOOD).inputs
    body = zlib.compress(b"no tar at all", wbits=31)
    assert "damaged" in refusal(with_header(body))
