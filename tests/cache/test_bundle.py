"""cache.export and import_: whole entries travel, and nothing that a bundle says is believed."""

from __future__ import annotations

import errno
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_dynamo import cache
from neuron_dynamo.cache import bundle
from neuron_dynamo.cache.failures import failure_key
from neuron_dynamo.cache.key import FORMAT
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.errors import BundleError, InspectError
from neuron_dynamo.report import GraphReport, ProgramReport
from tests.cache.samples import artifact, key

OTHER = cache.CacheKey((("program", "p"), ("target", "trn2")))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "cache")
    for name in (key("a"), key("b"), OTHER):
        store.write(name, artifact(name.digest.encode()))
    store.write(failure_key(key("c")), artifact(b"{}"))
    return store


@pytest.fixture
def packed(store: LocalStore, tmp_path: Path) -> Path:
    cache.export(tmp_path / "bundle", store.root)
    return tmp_path / "bundle"


def digests(*keys: cache.CacheKey) -> tuple[str, ...]:
    return tuple(sorted(key.digest for key in keys))


def test_round_trip_to_another_directory(store: LocalStore, packed: Path, tmp_path: Path) -> None:
    there = LocalStore(tmp_path / "another home" / "cache")
    first = cache.import_(packed, there.root)
    assert (first.new, first.present, first.refused) == (digests(key("a"), key("b"), OTHER), (), ())
    for name in (key("a"), key("b"), OTHER):
        assert there.read(name) == store.read(name)
    assert cache.verify(there.root).good == 3
    again = cache.import_(packed, there.root)
    assert (again.new, again.present) == ((), first.new)


def test_equal_entries_make_equal_bytes(packed: Path, tmp_path: Path) -> None:
    cache.import_(packed, tmp_path / "there")
    outcome = cache.export(tmp_path / "again", tmp_path / "there")
    assert outcome.path.read_bytes() == packed.read_bytes() and outcome.size == packed.stat().st_size
    assert str(tmp_path).encode() not in packed.read_bytes()


def test_filters(store: LocalStore, tmp_path: Path) -> None:
    def exported(**given: object) -> tuple[str, ...]:
        return cache.export(tmp_path / "some", store.root, **given).digests  # type: ignore[arg-type]

    assert exported(target="trn2") == (OTHER.digest,)
    assert exported(digests=[key("a").digest[:10].upper()]) == (key("a").digest,)
    report = GraphReport("g", "forward", programs=[ProgramReport(key("b").digest, "disk", b""), ProgramReport(OTHER.digest, "disk", b"")])
    assert exported(graphs=[report]) == digests(key("b"), OTHER)
    assert exported(graphs=[GraphReport("g", "forward")]) == ()
    for wrong in (["f" * 64], [""]):
        with pytest.raises(InspectError):
            exported(digests=wrong)


def test_a_damaged_entry_is_left_out_and_named(store: LocalStore, tmp_path: Path) -> None:
    (store.entry_path(key("a")) / "artifact.bin").write_bytes(b"?")
    outcome = cache.export(tmp_path / "bundle", store.root)
    assert outcome.digests == digests(key("b"), OTHER)
    assert outcome.skipped == ((key("a").digest, "artifact.bin does not match its checksum"),)


def test_export_appears_whole_or_not_at_all(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "bundle").write_bytes(b"before")
    monkeypatch.setattr(bundle, "_add_entry", full)
    with pytest.raises(OSError, match="No space"):
        cache.export(tmp_path / "bundle", store.root)
    assert (tmp_path / "bundle").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "cache"]


def test_import_keeps_what_is_there_and_mends_what_is_damaged(packed: Path, tmp_path: Path) -> None:
    there = LocalStore(tmp_path / "there")
    there.write(key("a"), artifact(b"its own"))
    there.write(key("b"), artifact(b"damaged"))
    (there.entry_path(key("b")) / "artifact.bin").write_bytes(b"?")
    outcome = cache.import_(packed, there.root)
    assert (outcome.new, outcome.present) == (digests(key("b"), OTHER), (key("a").digest,))
    kept, mended = there.read(key("a")), there.read(key("b"))
    assert kept is not None and kept.payload == b"its own"
    assert mended is not None and mended.payload == key("b").digest.encode()


def test_a_write_that_fails_refuses_its_entry_alone(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = LocalStore.write

    def write(self: LocalStore, name: cache.CacheKey, *args: object) -> bool:
        if name == key("a"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalStore, "write", write)
    outcome = cache.import_(packed, tmp_path / "there")
    assert outcome.new == digests(key("b"), OTHER)
    ((digest, reason),) = outcome.refused
    assert digest == key("a").digest and "No space" in reason
    assert cache.usage(tmp_path / "there").drafts.count == 0


def members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def rewritten(path: Path, change: Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]) -> None:
    old = members(path)
    with tarfile.open(path, "w") as tar:
        for member, data in (new for pair in old for new in change(*pair)):
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def named(name: str, data: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member, data


A = f"entries/{key('a').digest}"
HOSTILE: dict[str, tuple[tarfile.TarInfo, bytes]] = {
    "absolute": named("/etc/passwd"),
    "parent": named(f"{A}/../../../escaped"),
    "nested": named(f"{A}/sub/file"),
    "other folder": named("locks/gc.lock"),
    "link": named(f"{A}/evil", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": named(f"{A}/evil", b"", type=tarfile.LNKTYPE, linkname=f"{A}/artifact.bin"),
    "device": named(f"{A}/evil", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "pipe": named(f"{A}/evil", b"", type=tarfile.FIFOTYPE),
    "folder": named(f"{A}/evil", b"", type=tarfile.DIRTYPE),
    "twice": named(f"{A}/artifact.bin", b"other"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_members_are_refused_and_the_rest_imported(packed: Path, tmp_path: Path, kind: str) -> None:
    rewritten(packed, lambda member, data: [(member, data), HOSTILE[kind]] if member.name == f"{A}/program.mlir.bc" else [(member, data)])
    before = sorted(tmp_path.rglob("*"))
    outcome = cache.import_(packed, tmp_path / "there")
    assert outcome.new == digests(key("a"), key("b"), OTHER)
    ((name, _),) = outcome.refused
    assert name == HOSTILE[kind][0].name
    assert sorted(path for path in tmp_path.rglob("*") if tmp_path / "there" not in (path, *path.parents)) == before
    assert cache.verify(tmp_path / "there").good == 3


def edited(**fields: object) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **fields}).encode()


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "payload": ("artifact.bin", lambda data: data[:-1] + b"?", "artifact.bin does not match its checksum"),
    "manifest": ("manifest.json", edited(log="no warning"), "its manifest does not match its checksum"),
    "newer": ("manifest.json", edited(format=FORMAT + 1), f"its format is {FORMAT + 1}"),
    "another key": ("manifest.json", lambda data: data.replace(b'"a"', b'"z"'), "its manifest does not match its checksum"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_bad_entry_is_refused_with_its_reason(packed: Path, tmp_path: Path, kind: str) -> None:
    file, change, reason = DAMAGE[kind]
    rewritten(packed, lambda member, data: [(member, change(data) if member.name == f"{A}/{file}" else data)])
    outcome = cache.import_(packed, tmp_path / "there")
    assert outcome.new == digests(key("b"), OTHER)
    ((digest, said),) = outcome.refused
    assert digest == key("a").digest and reason in said
    assert LocalStore(tmp_path / "there").read(key("a")) is None


def test_a_missing_file_or_entry_is_told(packed: Path, tmp_path: Path) -> None:
    rewritten(packed, lambda member, data: [] if member.name.startswith(A) else [(member, data)])
    assert cache.import_(packed, tmp_path / "one").refused == ((key("a").digest, "the index names it, but it is not there"),)


def test_every_truncation_is_told_and_never_half_published(packed: Path, tmp_path: Path) -> None:
    whole = packed.read_bytes()
    index = next(i for i in range(0, len(whole), 512) if whole[i:].startswith(b"index.json"))
    seen = set()
    for number, length in enumerate(range(0, index + 513, 512)):
        packed.write_bytes(whole[: length + (number * 97) % 512 if length < index else length])
        there = tmp_path / f"there{number}"
        try:
            outcome = cache.import_(packed, there)
        except BundleError:
            assert not there.exists()
            continue
        assert outcome.refused
        seen.add(len(outcome.new))
        report = cache.verify(there)
        assert (report.good, report.bad) == (len(outcome.new), ()) and cache.usage(there).drafts.count == 0
    assert seen == {0, 1, 2, 3}


def test_a_member_that_claims_to_be_huge_is_refused(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(packed.read_bytes())
    start = data.index(f"{A}/artifact.bin".encode())
    header = tarfile.TarInfo(f"{A}/artifact.bin")
    header.size = 2**40
    data[start : start + 512] = header.tobuf(tarfile.GNU_FORMAT)
    packed.write_bytes(data)
    assert any(reason == "it is cut off" for _, reason in cache.import_(packed, tmp_path / "one").refused)
    monkeypatch.setattr(bundle, "MAX_ENTRY", 100)
    refused = cache.import_(packed, tmp_path / "two").refused
    assert any("is larger than 100 bytes" in reason for _, reason in refused) and cache.entries(tmp_path / "two") == ()


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"", "not a bundle"), (b"no tar", "not a bundle"), (b"\x1f\x8b" + b"\0" * 600, "not a bundle"), (b"\0" * 10240, "not a bundle")],
)
def test_other_files_are_no_bundles(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BundleError, match=what):
        cache.import_(tmp_path / "file", tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_bundle_of_another_version_is_refused_as_a_whole(packed: Path, tmp_path: Path) -> None:
    rewritten(packed, lambda m, data: [(m, edited(bundle=2)(data) if m.name == "neuron_dynamo_bundle.json" else data)])
    with pytest.raises(BundleError, match="version 2"):
        cache.import_(packed, tmp_path / "there")
