"""cache.verify: every kind of damage is found, and nothing else is touched."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_dynamo import cache
from neuron_dynamo.cache.key import FORMAT
from neuron_dynamo.cache.local import LocalStore
from tests.cache.samples import artifact, key


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replace_by_link(path: Path) -> None:
    copy = path.parents[3] / "elsewhere"
    copy.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(copy)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (lambda entry: flip(entry / "artifact.bin"), "artifact.bin does not match its checksum"),
    "truncated": (lambda entry: (entry / "artifact.bin").write_bytes(b""), "artifact.bin does not match its checksum"),
    "blob flipped": (lambda entry: flip(entry / "program.mlir.bc"), "program.mlir.bc does not match its checksum"),
    "file missing": (lambda entry: (entry / "artifact.bin").unlink(), "artifact.bin"),
    "link": (lambda entry: replace_by_link(entry / "artifact.bin"), "artifact.bin"),
    "manifest truncated": (lambda entry: (entry / "manifest.json").write_text("{"), "its manifest cannot be read"),
    "manifest missing": (lambda entry: (entry / "manifest.json").unlink(), "manifest.json"),
    "manifest edited": (
        lambda entry: (entry / "manifest.json").write_text((entry / "manifest.json").read_text().replace("one warning", "no warning")),
        "its manifest does not match its checksum",
    ),
    "a file": (lambda entry: (shutil.rmtree(entry), entry.write_text("x")), "Not a directory"),
}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "cache")
    for name in ("good", "bad"):
        store.write(key(name), artifact(name.encode() * 20))
    return store


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_reported_then_quarantined(store: LocalStore, damage: str) -> None:
    inflict, reason = DAMAGE[damage]
    inflict(store.entry_path(key("bad")))
    outcome = cache.verify(store.root)
    (bad,) = outcome.bad
    assert outcome.good == 1 and bad.digest == key("bad").digest and reason in bad.reason and bad.moved_to is None
    assert bad.path.exists()
    (moved,) = cache.verify(store.root, quarantine=True).bad
    assert moved.moved_to is not None and moved.moved_to.parent == store.root / "quarantine" and moved.moved_to.exists()
    after = cache.verify(store.root, quarantine=True)
    assert (after.good, after.bad) == (1, ())
    store.write(key("bad"), artifact(b"made anew"))
    assert cache.verify(store.root).good == 2


def test_an_entry_under_another_digest_is_bad(store: LocalStore) -> None:
    good, other = store.entry_path(key("good")), store.entry_path(key("other"))
    other.parent.mkdir(exist_ok=True)
    shutil.copytree(good, other)
    (bad,) = cache.verify(store.root).bad
    assert (bad.digest, bad.reason) == (key("other").digest, "it belongs to another key")


def test_a_newer_format_is_left_alone(store: LocalStore) -> None:
    manifest = store.entry_path(key("bad")) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": FORMAT + 1}))
    outcome = cache.verify(store.root, quarantine=True)
    assert (outcome.good, outcome.bad, outcome.other_format) == (1, (), (manifest.parent,))
    assert manifest.exists()


def test_an_entry_that_a_job_removes_meanwhile_is_not_reported(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("neuron_dynamo.cache.verify")
    original = module._read

    def read(path: Path, limit: int) -> bytes:
        if path.name == "artifact.bin" and path.parent == store.entry_path(key("bad")):
            shutil.rmtree(path.parent)
        return original(path, limit)

    monkeypatch.setattr(module, "_read", read)
    outcome = cache.verify(store.root, quarantine=True)
    assert (outcome.good, outcome.bad) == (1, ())


def test_an_entry_that_is_replaced_meanwhile_is_not_moved(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("neuron_dynamo.cache.verify")
    path = store.entry_path(key("bad"))
    flip(path / "artifact.bin")
    original = module.layout.stated_format

    def replaced(folder: Path) -> int | None:
        path.rename(store.root / "old")
        store.write(key("bad"), artifact(b"good by now"))
        return original(folder)

    monkeypatch.setattr(module.layout, "stated_format", replaced)
    (bad,) = cache.verify(store.root, quarantine=True).bad
    assert bad.moved_to is None
    monkeypatch.undo()
    assert cache.verify(store.root).good == 2
