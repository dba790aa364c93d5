import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from neuron_dynamo.cache import PROGRAM, Artifact, CacheKey
from neuron_dynamo.cache.entry import BadEntry, ForeignEntry
from neuron_dynamo.cache.key import FORMAT
from neuron_dynamo.cache.local import LocalStore
from tests.cache.samples import SIGNATURE, artifact, key


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "cache")


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_round_trip(store):
    assert store.read(key()) is None
    store.write(key(), artifact())
    assert store.read(key()) == artifact()
    assert store.read(key("p1")) is None


def test_layout_and_manifest(store):
    store.write(key(), artifact())
    digest = key().digest
    entry = f"v1/{digest[:2]}/{digest}"
    assert files(store.root) == [f"{entry}/artifact.bin", f"{entry}/manifest.json", f"{entry}/program.mlir.bc"]
    assert (store.root / entry / "artifact.bin").read_bytes() == b"compiled bytes"
    manifest = json.loads((store.root / entry / "manifest.json").read_text())
    assert manifest["key"] == [["program", "p0"], ["target", "host"]]
    assert manifest["signature"] == SIGNATURE.to_json()
    assert (manifest["timings"], manifest["log"], manifest["format"]) == ({"compile": 1.5}, "one warning", 1)
    assert manifest["files"]["artifact.bin"] == {"sha256": hashlib.sha256(b"compiled bytes").hexdigest(), "size": 14}


def test_first_writer_wins(store):
    store.write(key(), artifact(b"first"))
    store.write(key(), artifact(b"second"))
    assert store.read(key()).payload == b"first"
    assert list((store.root / "tmp").iterdir()) == []


def test_loser_of_a_race_leaves_the_winner_and_no_draft(store, monkeypatch):
    rename = os.rename

    def slower_than_another(source, destination):
        monkeypatch.setattr(os, "rename", rename)
        LocalStore(store.root).write(key(), artifact(b"winner"))
        rename(source, destination)

    monkeypatch.setattr(os, "rename", slower_than_another)
    store.write(key(), artifact(b"loser"))
    assert store.read(key()).payload == b"winner"
    assert list((store.root / "tmp").iterdir()) == []


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit_manifest(entry: Path, **fields) -> None:
    path = entry / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def replace_entry(entry: Path) -> None:
    for path in entry.iterdir():
        path.unlink()
    entry.rmdir()
    entry.write_text("a file")


def foreign_entry(entry: Path) -> None:
    for path in entry.iterdir():
        path.unlink()
    (entry / "manifest.json").write_text('["another program wrote this"]')


def other_key(entry: Path) -> None:
    store = LocalStore(entry.parents[2])
    store.write(key("p1"), artifact())
    (entry / "manifest.json").write_bytes((store.entry_path(key("p1")) / "manifest.json").read_bytes())


def link_payload(entry: Path) -> None:
    (entry / "artifact.bin").rename(entry.parents[2] / "elsewhere")
    (entry / "artifact.bin").symlink_to(entry.parents[2] / "elsewhere")


def pipe_payload(entry: Path) -> None:
    (entry / "artifact.bin").unlink()
    os.mkfifo(entry / "artifact.bin")


DAMAGES = {
    "payload flipped": lambda entry: flip(entry / "artifact.bin", 3),
    "payload truncated": lambda entry: os.truncate(entry / "artifact.bin", 5),
    "payload empty": lambda entry: os.truncate(entry / "artifact.bin", 0),
    "payload longer": lambda entry: (entry / "artifact.bin").write_bytes(b"compiled bytes."),
    "payload missing": lambda entry: (entry / "artifact.bin").unlink(),
    "payload a folder": lambda entry: ((entry / "artifact.bin").unlink(), (entry / "artifact.bin").mkdir()),
    "payload a link": link_payload,
    "payload a pipe": pipe_payload,
    "blob flipped": lambda entry: flip(entry / PROGRAM, 0),
    "blob missing": lambda entry: (entry / PROGRAM).unlink(),
    "manifest empty": lambda entry: os.truncate(entry / "manifest.json", 0),
    "manifest half": lambda entry: os.truncate(entry / "manifest.json", 100),
    "manifest missing": lambda entry: (entry / "manifest.json").unlink(),
    "manifest not utf-8": lambda entry: (entry / "manifest.json").write_bytes(b"\xff\xfe\x00"),
    "manifest bottomless": lambda entry: (entry / "manifest.json").write_text("[" * 200_000),
    "manifest edited": lambda entry: edit_manifest(entry, signature={"inputs": [], "outputs": [], "aliases": []}),
    "older format": lambda entry: edit_manifest(entry, format=FORMAT - 1),
    "foreign": foreign_entry,
    "other key": other_key,
    "entry a file": replace_entry,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_found_and_quarantine_makes_room(store, damage):
    store.write(key(), artifact())
    damage(store.entry_path(key()))
    with pytest.raises(BadEntry):
        store.read(key())
    moved = store.quarantine(key())
    assert moved.parent == store.root / "quarantine" and moved.exists()
    assert store.read(key()) is None
    store.write(key(), artifact())
    assert store.read(key()) == artifact()


def test_newer_formats_are_neither_used_nor_touched(store):
    store.write(key(), artifact(b"newer"))
    edit_manifest(store.entry_path(key()), format=FORMAT + 1)
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    with pytest.raises(ForeignEntry, match=f"its format is {FORMAT + 1}, which is newer than {FORMAT}"):
        store.read(key())
    with pytest.raises(ForeignEntry):
        store.quarantine(key())
    assert not store.write(key(), artifact(b"ours"))
    assert not store.write(key(), artifact(b"ours"), replace=True)
    assert {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()} == before


def test_every_flipped_bit_of_a_manifest_is_found_or_harmless(store):
    store.write(key(), artifact())
    manifest = store.entry_path(key()) / "manifest.json"
    intact = manifest.read_bytes()
    found = 0
    for at in range(len(intact)):
        bit = (0x01, 0x20, 0x80)[at % 3]
        manifest.write_bytes(intact[:at] + bytes([intact[at] ^ bit]) + intact[at + 1 :])
        try:
            assert store.read(key()) == artifact()
        except BadEntry:
            found += 1
    assert found > 0.9 * len(intact)


def test_stored_keys_skips_what_is_damaged(store):
    for program in ("p0", "p1", "p2"):
        store.write(key(program), artifact())
    os.truncate(store.entry_path(key("p1")) / "manifest.json", 10)
    assert {found.digest for found in store.stored_keys()} == {key("p0").digest, key("p2").digest}
    assert list(LocalStore(store.root / "absent").stored_keys()) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "manifest.json", "artifact.bin", "", ".hidden"])
def test_blob_names_stay_in_the_entry(name):
    with pytest.raises(ValueError, match="blob"):
        Artifact(b"", SIGNATURE, blobs={name: b""})


def test_failed_write_leaves_no_draft(store, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.write(key(), artifact())
    assert files(store.root) == []
    assert list((store.root / "tmp").iterdir()) == []


def test_foreign_files_in_the_directory_stay(store):
    store.root.mkdir()
    (store.root / "tmp").mkdir()
    for name in ("notes.txt", "tmp/precious", "v2"):
        (store.root / name).write_text("mine")
    store.write(key(), artifact())
    store.quarantine(key())
    assert {"notes.txt", "tmp/precious", "v2"} <= set(files(store.root))


def test_root_of_our_making_is_private_and_a_given_one_keeps_its_mode(tmp_path):
    old = os.umask(0o022)
    try:
        LocalStore(tmp_path / "new" / "root").write(key(), artifact())
        assert (tmp_path / "new" / "root").stat().st_mode & 0o777 == 0o700
        (tmp_path / "given").mkdir(mode=0o755)
        LocalStore(tmp_path / "given").write(key(), artifact())
        assert (tmp_path / "given").stat().st_mode & 0o777 == 0o755
        assert LocalStore(tmp_path / "given").entry_path(key()).stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(old)


def test_key_is_stored_part_by_part(store):
    stored = CacheKey((("b", "1"), ("a", "ü")))
    store.write(stored, artifact())
    assert list(store.stored_keys()) == [stored]
