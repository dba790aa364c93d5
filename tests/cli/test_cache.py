"""neuron-dynamo cache: what it lists is what the store holds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from neuron_dynamo.cache.listing import entries
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cli.main import main
from tests.cache.samples import artifact, key


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache with two entries, "old" and "new", and one damaged entry."""
    store = LocalStore(tmp_path / "cache")
    for name, seconds in (("old", 1_000_000_000), ("new", 1_100_000_000), ("damaged", 1_200_000_000)):
        store.write(key(name), artifact(name.encode()))
        os.utime(store.entry_path(key(name)) / "manifest.json", (seconds, seconds))
    (store.entry_path(key("damaged")) / "manifest.json").write_text("{")
    return store.root


def test_entries_newest_first_without_the_damaged(root: Path) -> None:
    new, old = entries(root)
    assert (new.key, old.key) == (key("new"), key("old"))
    assert new.created == 1_100_000_000
    assert new.size == sum(file.stat().st_size for file in new.path.iterdir() if file.name != "manifest.json")


def test_entries_of_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert entries(tmp_path / "absent") == ()


def test_where_follows_option_then_environment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEURON_DYNAMO_CACHE_DIR", str(tmp_path / "from_env"))
    assert main(["cache", "where"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'from_env'}\n"
    assert main(["cache", "where", "--json", "--cache-dir", str(tmp_path / "given")]) == 0
    assert json.loads(capsys.readouterr().out) == {"cache_dir": str(tmp_path / "given")}


def test_ls(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--cache-dir", str(root)]) == 0
    out = capsys.readouterr().out
    assert f"2 entries in {root}" in out
    assert out.index(key("new").digest[:16]) < out.index(key("old").digest[:16])
    assert "1.500" in out


def test_ls_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--json", "--cache-dir", str(root)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [entry["digest"] for entry in data] == [key("new").digest, key("old").digest]
    assert data[0]["manifest"]["key"] == key("new").to_json()


def test_show_by_the_beginning_of_a_digest(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "show", key("old").digest[:10].upper(), "--cache-dir", str(root)]) == 0
    out = capsys.readouterr().out
    for text in (key("old").digest, "program", "old", "artifact.bin", "compile", "one warning"):
        assert text in out


@pytest.mark.parametrize(("digest", "what"), [("", "2 entries begin with ''"), ("zz", "no entry of")])
def test_show_without_one_answer(root: Path, capsys: pytest.CaptureFixture[str], digest: str, what: str) -> None:
    assert main(["cache", "show", digest, "--cache-dir", str(root)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ND050: {what}")
    assert "cache ls" in captured.err
