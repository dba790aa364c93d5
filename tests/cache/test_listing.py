"""cache.entries, show, usage and where: what they tell is what lies there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from neuron_dynamo import cache
from neuron_dynamo.cache.failures import failure_key
from neuron_dynamo.cache.key import FORMAT
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.errors import InspectError
from neuron_dynamo.units import parse_size, parse_span, readable_size
from tests.cache.samples import artifact, key

PROGRAM_KEY = cache.CacheKey((("kind", "program"), ("graph", "g"), ("target", "trn2")))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Entries old (7 bytes), new (longer, for trn2), a Program and a failure; one damaged, one of a newer format, one quarantined."""
    store = LocalStore(tmp_path / "cache")
    new = cache.CacheKey((("program", "new"), ("target", "trn2"), ("compiler", "neuronx-cc")))
    made = ((key("old"), b"old"), (new, b"n" * 1000), (PROGRAM_KEY, b"program"), (failure_key(key("failed")), b"{}"))
    for seconds, (name, content) in enumerate((*made, (key("damaged"), b"d"), (key("newer"), b"e"), (key("aside"), b"f"))):
        store.write(name, artifact(content))
        os.utime(store.entry_path(name) / "manifest.json", (1_000_000_000 + seconds, 1_000_000_000 + seconds))
        os.utime(store.entry_path(name), (1_100_000_000 - seconds, 1_100_000_000 - seconds))
    (store.entry_path(key("damaged")) / "manifest.json").write_text("{")
    newer = store.entry_path(key("newer")) / "manifest.json"
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "format": FORMAT + 1}))
    store.quarantine(key("aside"))
    later = store.root / f"v{FORMAT + 3}" / "ab" / ("ab" + "0" * 62)
    later.mkdir(parents=True)
    (later / "whatever").write_bytes(b"12345")
    return store.root


def names(found: tuple[cache.Entry, ...]) -> list[str]:
    return [dict(entry.key.parts).get("program", entry.kind) for entry in found]


def test_entries_filtered_and_ordered(root: Path) -> None:
    assert names(cache.entries(root)) == ["failed", "program", "new", "old"]
    assert names(cache.entries(str(root), kind="artifact")) == ["new", "old"]
    assert [entry.kind for entry in cache.entries(root, target="trn2")] == ["program", "artifact"]
    assert names(cache.entries(root, kind="failure")) == ["failed"]
    assert names(cache.entries(root, digest=key("old").digest[:9].upper())) == ["old"]
    assert names(cache.entries(root, order="size"))[0] == "new"
    assert names(cache.entries(root, order="used")) == ["old", "new", "program", "failed"]
    assert names(cache.entries(root, order="target")) == ["failed", "old", "program", "new"]
    assert cache.entries(root, newer=3600) == () and len(cache.entries(root, older=3600)) == 4
    (old,) = cache.entries(root, digest=key("old").digest)
    assert old.size == sum(file.stat().st_size for file in old.path.iterdir() if file.name != "manifest.json")
    assert (old.created, old.used, old.seconds) == (1_000_000_000, 1_100_000_000, 1.5)


@pytest.mark.parametrize("given", [{"kind": "neff"}, {"order": "name"}])
def test_unknown_kinds_and_orders_are_refused(root: Path, given: dict[str, str]) -> None:
    with pytest.raises(InspectError, match="valid values are"):
        cache.entries(root, **given)  # type: ignore[arg-type]


def test_show_wants_one_entry(root: Path) -> None:
    assert cache.show(key("old").digest[:12], root).key == key("old")
    for digest, what in (("", "4 entries begin with"), ("zz", "no entry of")):
        with pytest.raises(InspectError, match=what):
            cache.show(digest, root)


def test_usage_counts_everything_once(root: Path) -> None:
    found = cache.usage(root)
    counts = {group: room.count for group, room in found.groups.items()}
    assert counts == {
        ("host", "", "artifact"): 1,
        ("host", "", "failure"): 1,
        ("trn2", "", "program"): 1,
        ("trn2", "neuronx-cc", "artifact"): 1,
    }
    assert found.entries.count == 4 and found.entries.size == sum(entry.size for entry in cache.entries(root))
    assert (found.damaged.count, found.quarantine.count, found.failures.count, found.drafts.count) == (1, 1, 1, 0)
    assert {number: room.count for number, room in found.other_formats.items()} == {FORMAT + 1: 1, FORMAT + 3: 1}
    assert found.other_formats[FORMAT + 3].size == 5
    assert found.to_json()["other_formats"][str(FORMAT + 3)] == {"count": 1, "bytes": 5}


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert cache.entries(tmp_path / "absent") == ()
    assert cache.usage(tmp_path / "absent").entries.count == 0
    assert cache.verify(tmp_path / "absent").good == 0
    assert cache.gc(tmp_path / "absent", max_size=0).removed == ()
    assert not (tmp_path / "absent").exists()


def test_where_says_who_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NEURON_DYNAMO_CACHE_DIR", raising=False)
    found = cache.where()
    assert (found.path, found.source, found.exists, found.writable) == (tmp_path / ".cache/neuron_dynamo", "default", False, True)
    monkeypatch.setenv("NEURON_DYNAMO_CACHE_DIR", str(tmp_path / "env"))
    monkeypatch.setenv("NEURON_DYNAMO_CACHE_LAYERS", f"{tmp_path}/one:{tmp_path}/two")
    monkeypatch.setenv("NEURON_DYNAMO_CACHE_REMOTE", "memory://bucket")
    found = cache.where()
    assert (found.path, found.source) == (tmp_path / "env", "environment")
    assert found.layers == (tmp_path / "one", tmp_path / "two") and found.remote == "memory://bucket"
    found = cache.where("~/given")
    assert (found.path, found.source) == (tmp_path / "given", "option")


def test_gc_of_quarantine_is_asked_for(root: Path) -> None:
    assert [item.kind for item in cache.gc(root).removed] == []
    (planned,) = cache.gc(root, quarantine=True, dry_run=True).removed
    assert planned.kind == "quarantined" and planned.path.exists()
    assert cache.gc(root, quarantine=True).removed == (planned,)
    assert not planned.path.exists()
    assert len(cache.entries(root)) == 4


def test_gc_by_age_and_size_leaves_newer_formats(root: Path) -> None:
    before = cache.usage(root).other_formats
    outcome = cache.gc(root, max_age="1d", dry_run=True)
    assert len([item for item in outcome.removed if item.kind == "entry"]) >= 4 and len(cache.entries(root)) == 4
    cache.gc(root, max_size="0GB")
    assert cache.entries(root) == () and cache.usage(root).other_formats == before


def test_units() -> None:
    assert [parse_size(text) for text in ("10GB", "1.5 MiB", "4096", "2k", "0")] == [10**10, 3 * 2**19, 4096, 2000, 0]
    assert [parse_span(text) for text in ("30d", "12h", "90min", "5", "1w")] == [2592000, 43200, 5400, 5, 604800]
    assert [readable_size(size) for size in (0, 999, 1000, 1_400_000, 999_000_000, 5e13)] == [
        "0 B", "999 B", "1.0 kB", "1.4 MB", "999 MB", "50.0 TB",
    ]  # fmt: skip
    for function, text in ((parse_size, "10 lbs"), (parse_size, "-1"), (parse_span, "30y"), (parse_span, "")):
        with pytest.raises(InspectError, match="write it as"):
            function(text)
