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
    found = json.loads(capsys.readouterr().out)
    assert (found["cache_dir"], found["source"], found["exists"]) == (str(tmp_path / "given"), "option", False)
    assert main(["cache", "where", "--long"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "from_env"), "from environment, not there yet, writable"]


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


def test_ls_filters(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*flags: str) -> list[str]:
        assert main(["cache", "ls", "--json", "--cache-dir", str(root), *flags]) == 0
        return [entry["digest"] for entry in json.loads(capsys.readouterr().out)]

    new, old = key("new").digest, key("old").digest
    assert listed("--sort", "size") == [new, old] and listed("--limit", "1") == [new]
    assert listed("--target", "trn2") == listed("--failed") == listed("--kind", "program") == listed("--newer", "1d") == []
    assert listed("--older", "1d", "--target", "host") == [new, old]
    for wrong in (["--older", "soon"], ["--kind", "neff"]):
        with pytest.raises(SystemExit, match="2"):
            main(["cache", "ls", *wrong])


def test_verify_tells_by_its_exit_code(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify", "--cache-dir", str(root)]) == 1
    out = capsys.readouterr().out
    assert f"2 entries of {root} are good, 1 bad" in out and f"{key('damaged').digest}: its manifest cannot be read" in out
    assert main(["cache", "verify", "--quarantine", "--json", "--cache-dir", str(root)]) == 1
    (bad,) = json.loads(capsys.readouterr().out)["bad"]
    assert Path(bad["moved_to"]).exists()
    assert main(["cache", "verify", "--json", "--cache-dir", str(root)]) == 0
    assert json.loads(capsys.readouterr().out) == {"cache_dir": str(root), "good": 2, "bad": [], "other_format": []}


def test_gc(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.utime(key_path(root, "old"), (1, 1))
    assert main(["cache", "gc", "--max-age", "365d", "--dry-run", "--cache-dir", str(root)]) == 0
    out = capsys.readouterr().out
    assert str(key_path(root, "old")) in out and "1 would be removed" in out and key_path(root, "old").exists()
    assert main(["cache", "gc", "--max-age", "365d", "--json", "--cache-dir", str(root)]) == 0
    (removed,) = json.loads(capsys.readouterr().out)["removed"]
    assert removed["path"] == str(key_path(root, "old")) and not key_path(root, "old").exists()
    assert main(["cache", "gc", "--max-size", "0", "--cache-dir", str(root)]) == 0
    assert entries(root) == ()


def key_path(root: Path, name: str) -> Path:
    return LocalStore(root).entry_path(key(name))


def test_export_and_import(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bundle, there = str(tmp_path / "bundle"), str(tmp_path / "there")
    assert main(["cache", "export", bundle, "--digest", key("new").digest[:12], "--cache-dir", str(root)]) == 0
    assert capsys.readouterr().out.startswith("1 entries, ")
    (tmp_path / "list").write_text(f"{key('old').digest}\n\n")
    assert main(["cache", "export", bundle, "--digests-from", str(tmp_path / "list"), "--json", "--cache-dir", str(root)]) == 0
    assert json.loads(capsys.readouterr().out)["digests"] == [key("old").digest]
    assert main(["cache", "export", bundle, "--cache-dir", str(root)]) == 0
    capsys.readouterr()
    assert main(["cache", "import", bundle, "--cache-dir", there]) == 0
    assert capsys.readouterr().out == f"{there}: 2 new, 0 already there, 0 refused\n"
    assert main(["cache", "import", bundle, "--json", "--cache-dir", there]) == 0
    assert len(json.loads(capsys.readouterr().out)["present"]) == 2
    data = bytearray(Path(bundle).read_bytes())
    data[data.index(b"old", 3000)] ^= 1
    Path(bundle).write_bytes(data)
    assert main(["cache", "import", bundle, "--cache-dir", str(tmp_path / "elsewhere")]) == 1
    assert "1 refused" in capsys.readouterr().out
    for command in (["import", str(tmp_path / "list")], ["import", str(tmp_path / "absent")], ["export", "/proc/bundle"]):
        assert main(["cache", *command, "--cache-dir", there]) == 2
        assert "what to do" in capsys.readouterr().err


def test_stats(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "stats", "--cache-dir", str(root)]) == 0
    out = capsys.readouterr().out
    assert f"2 entries in {root}" in out and "1 damaged" in out and "host" in out
    assert main(["cache", "stats", "--json", "--cache-dir", str(root)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["entries"]["count"], found["damaged"]["count"], found["groups"][0]["target"]) == (2, 1, "host")


def test_choices_are_those_of_the_library() -> None:
    from neuron_dynamo.cache import listing
    from neuron_dynamo.cli import cache

    assert (cache._KINDS, cache._ORDERS) == (listing.KINDS, listing.ORDERS)


def test_show_by_the_beginning_of_a_digest(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "show", key("old").digest[:10].upper(), "--cache-dir", str(root)]) == 0
    out = capsys.readouterr().out
    for text in (key("old").digest, "program", "old", "artifact.bin", "compile", "one warning", "[2, 3]", "bfloat16"):
        assert text in out


@pytest.mark.parametrize(("digest", "what"), [("", "2 entries begin with ''"), ("zz", "no entry of")])
def test_show_without_one_answer(root: Path, capsys: pytest.CaptureFixture[str], digest: str, what: str) -> None:
    assert main(["cache", "show", digest, "--cache-dir", str(root)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ND050: {what}")
    assert "cache ls" in captured.err
