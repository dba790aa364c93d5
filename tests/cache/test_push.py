"""cache.push: what was compiled while the remote was down gets there later, whole, and once."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from neuron_dynamo import cache
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.remote import RemoteStore
from neuron_dynamo.cli.main import main
from neuron_dynamo.errors import InspectError
from tests.cache.samples import artifact, key
from tests.cache.test_verify import flip


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    """Entries one, two and bad, and a remembered failure."""
    store = LocalStore(tmp_path / "cache")
    for name in ("one", "two", "bad"):
        store.write(key(name), artifact(name.encode()))
    flip(store.entry_path(key("bad")) / "artifact.bin")
    store.write(CacheKey((("kind", "failure"), *key("one").parts)), artifact())
    return store


def test_what_the_remote_lacks_is_sent_once(local: LocalStore) -> None:
    remote = RemoteStore(f"memory://push/{uuid.uuid4().hex}", 60.0)
    remote.write(key("two"), artifact(b"theirs"))
    done = cache.push(remote.url, local.root)
    assert (done.sent, done.present) == ((key("one").digest,), 1)
    assert done.skipped == ((key("bad").digest, "artifact.bin does not match its checksum"),)
    assert remote.read(key("one")) == artifact(b"one") and remote.read(key("two")) == artifact(b"theirs")
    again = cache.push(remote.url, local.root)
    assert (again.sent, again.present) == ((), 2)
    assert len(cache.push(remote.url, local.root, replace=True).sent) == 2
    assert remote.read(key("two")) == artifact(b"two")
    assert cache.push(remote.url, local.root, target="none").to_json()["skipped"] == []


def test_trouble_is_the_users(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NEURON_DYNAMO_CACHE_REMOTE", raising=False)
    with pytest.raises(InspectError, match="no remote is named"):
        cache.push(None, local.root)
    (tmp_path / "file").touch()
    with pytest.raises(InspectError, match="failed after 0 uploads"):
        cache.push(f"file://{tmp_path}/file/below", local.root)
    monkeypatch.setenv("NEURON_DYNAMO_CACHE_REMOTE", f"memory://push/{uuid.uuid4().hex}")
    assert main(["cache", "push", "--cache-dir", str(local.root)]) == 1
    assert "2 uploaded, 0 already there, 1 left out" in capsys.readouterr().out
    assert main(["cache", "push", "--json", "--cache-dir", str(local.root)]) == 1
    assert json.loads(capsys.readouterr().out)["present"] == 2
