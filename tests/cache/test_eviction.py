import os
import re
import time
from pathlib import Path

import pytest

from neuron_dynamo.cache import Cache, layout, stats, store
from neuron_dynamo.cache.eviction import STAMP_GRAIN, collect, touch, trim
from neuron_dynamo.cache.key import FORMAT
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.locks import FileLock
from neuron_dynamo.errors import OptionError
from neuron_dynamo.options import Options
from tests.cache.children import heard
from tests.cache.samples import artifact, key, options
from tests.cache.test_local import edit_manifest


@pytest.fixture
def local(tmp_path):
    return LocalStore(tmp_path / "cache")


def fill(local: LocalStore, ages: dict[str, float]) -> int:
    """Publish entries that were last used so many seconds ago; returns the size of one."""
    for name, age in ages.items():
        local.write(key(name), artifact())
        stamp = time.time() - age
        os.utime(local.entry_path(key(name)), (stamp, stamp))
    return sum(path.stat().st_size for path in local.entry_path(key(name)).iterdir())  # all names have the same length


def present(local: LocalStore, *names: str) -> str:
    return "".join(name for name in names if local.read(key(name)) is not None)


def test_least_recently_used_go_first(local):
    size = fill(local, {"a": 100, "b": 400, "c": 300, "d": 200})
    outcome = collect(local.root, max_bytes=2 * size)
    assert [(item.kind, item.path, item.size, item.reason) for item in outcome.removed] == [
        ("entry", local.entry_path(key(name)), size, "least recently used") for name in "bc"
    ]
    assert (outcome.before, outcome.after, outcome.freed) == (4 * size, 2 * size, 2 * size)
    assert present(local, *"abcd") == "ad"
    assert list((local.root / "tmp").iterdir()) == []
    assert collect(local.root, max_bytes=2 * size).removed == ()


def test_age(local):
    fill(local, {"a": 100, "b": 4000})
    outcome = collect(local.root, max_age=1000)
    [item] = outcome.removed
    assert re.fullmatch(r"not used for 4\d\d\d s", item.reason)  # a busy machine adds some
    assert present(local, *"ab") == "a"
    assert collect(local.root, max_age=0).after == 0


def test_dry_run_touches_nothing(local):
    size = fill(local, {"a": 100, "b": 400})
    draft = local.root / "tmp" / layout.unique_name(key().digest)
    draft.mkdir()
    (local.root / "locks" / f"{key().digest}.lock").touch()
    before = [(path, path.stat().st_mtime_ns) for path in sorted(local.root.rglob("*"))]
    outcome = collect(local.root, max_bytes=size, dry_run=True)
    assert [item.kind for item in outcome.removed] == ["draft", "lock", "entry"]
    assert [(path, path.stat().st_mtime_ns) for path in sorted(local.root.rglob("*"))] == before
    assert collect(local.root, max_bytes=size).to_json()["freed_bytes"] == outcome.freed
    assert present(local, *"ab") == "a"
    assert not draft.exists()


def test_a_read_counts_as_use_and_seldom_writes(local):
    size = fill(local, {"a": 3 * STAMP_GRAIN, "b": 2 * STAMP_GRAIN})
    stamp = local.entry_path(key("a")).stat().st_mtime
    local.read(key("a"))
    assert local.entry_path(key("a")).stat().st_mtime == stamp
    local.read(key("a"), note_use=True)
    assert local.entry_path(key("a")).stat().st_mtime > time.time() - 1000
    stamp = local.entry_path(key("a")).stat().st_mtime_ns
    local.read(key("a"), note_use=True)
    assert local.entry_path(key("a")).stat().st_mtime_ns == stamp
    collect(local.root, max_bytes=size)
    assert present(local, *"ab") == "a"


def test_use_that_cannot_be_noted_is_no_trouble(local, monkeypatch):
    fill(local, {"a": 3 * STAMP_GRAIN})

    def refuse(*args, **kwargs):
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    assert local.read(key("a"), note_use=True) == artifact()
    folder = os.open(local.root, os.O_RDONLY)
    os.close(folder)
    touch(folder)


def test_quarantined_count_towards_no_limit_and_stay(local):
    size = fill(local, {"a": 100, "b": 400})
    aside = local.quarantine(key("a"))
    os.utime(aside, (0, 0))
    local.write(key("c"), artifact())
    assert collect(local.root, max_bytes=2 * size).removed == ()
    outcome = collect(local.root, max_bytes=size, max_age=1000)
    assert [item.path for item in outcome.removed] == [local.entry_path(key("b"))]
    assert (outcome.before, outcome.after) == (2 * size, size)
    assert aside.is_dir() and present(local, *"abc") == "c"


def test_marks_of_the_dead_go_with_their_entries(local):
    """A mark says that a process died loading the entry: it stays while the entry does, is young, or is held by a living process."""
    fill(local, {"a": 0})
    folder = local.root / "loading"
    folder.mkdir()
    known, dead, young, held = (folder / f"{key(name).digest}.{'0' * 12}" for name in "abcd")
    other = folder / "notes.txt"
    for path in (known, dead, other, young):
        path.touch()
    lock = FileLock.take(held)
    for path in (known, dead, other, held):
        os.utime(path, (0, 0))
    assert [(item.kind, item.path) for item in collect(local.root, dry_run=True).removed] == [("mark", dead)]
    assert [item.path for item in collect(local.root).removed] == [dead]
    assert sorted(folder.iterdir()) == sorted([known, young, held, other])
    lock.release()


def test_what_is_not_ours_stays(local, tmp_path):
    """A user's files in the directory and in an entry, links, other formats, and what only looks like ours."""
    fill(local, dict.fromkeys("abcd", 10_000.0))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_text("{}")
    theirs = [
        local.root / "notes.txt",
        local.root / "tmp" / "precious",
        local.root / "tmp" / (layout.unique_name(key().digest) + ".mine") / "file",
        local.root / "locks" / "mine.lock",
        local.root / "quarantine" / "kept" / "file",
        local.root / f"v{FORMAT + 1}" / "ab" / ("ab" + "0" * 62) / "manifest.json",
        local.root / f"v{FORMAT}" / "ab" / "file",
        local.root / f"v{FORMAT}" / "ab" / ("cd" + "0" * 62) / "manifest.json",
        local.entry_path(key("a")) / "notes.txt",
        local.entry_path(key("b")) / "folder" / "file",
    ]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    edit_manifest(local.entry_path(key("c")), format=FORMAT + 1)
    linked = layout.entry_folder(local.root, "ef" + "0" * 62)
    linked.parent.mkdir(exist_ok=True)
    linked.symlink_to(outside)
    outcome = collect(local.root, max_bytes=0, max_age=0)
    assert [item.path for item in outcome.removed] == [local.entry_path(key("d"))]
    assert all(path.read_text() == "mine" for path in theirs)
    assert len(list(local.entry_path(key("a")).iterdir())) == 4
    assert len(list(local.entry_path(key("c")).iterdir())) == 3
    assert (outside / "manifest.json").exists()


def test_foreign_bytes_do_not_drive_ours_out(local):
    size = fill(local, {"a": 100, "b": 400})
    (local.entry_path(key("b")) / "huge.bin").write_bytes(bytes(100 * size))
    assert collect(local.root, max_bytes=2 * size).removed == ()
    assert present(local, *"ab") == "ab"


def test_older_formats_count(local):
    size = fill(local, {"a": 100, "b": 400})
    os.rename(local.root / f"v{FORMAT}", local.root / "v0")
    assert collect(local.root, max_bytes=size).after == size


def test_drafts_of_the_living_stay(local):
    fill(local, {"a": 0})
    name = layout.unique_name(key().digest)
    lock = FileLock.take(local.root / "locks" / f"{name}.lock")
    (local.root / "tmp" / name).mkdir()
    os.utime(local.root / "tmp" / name, (0, 0))
    assert collect(local.root, max_bytes=0).removed[0].kind == "entry"
    assert (local.root / "tmp" / name).is_dir()
    lock.release()
    assert [item.kind for item in collect(local.root).removed] == ["draft"]
    assert list((local.root / "tmp").iterdir()) == []


def test_writer_whose_draft_was_taken_for_dead_fails_as_a_whole(local, monkeypatch):
    """Where locks of another machine are not seen, a collection may be wrong about a draft; half an entry is never published."""
    real = os.rename

    def collected_before(source, destination):
        monkeypatch.setattr(os, "rename", real)
        [lock] = (local.root / "locks").iterdir()
        lock.unlink()
        assert [item.kind for item in collect(local.root).removed] == ["draft"]
        real(source, destination)

    monkeypatch.setattr(os, "rename", collected_before)
    with pytest.raises(FileNotFoundError):
        local.write(key(), artifact())
    assert local.read(key()) is None
    assert local.write(key(), artifact())


def test_reader_of_an_evicted_entry_sees_a_miss_and_of_a_replaced_one_the_next(local, monkeypatch):
    from neuron_dynamo.cache import local as module

    real = module._read_file
    for act, expected in (
        (lambda: collect(local.root, max_bytes=0), None),
        (lambda: LocalStore(local.root).write(key(), artifact(b"next"), replace=True), artifact(b"next")),
    ):
        local.write(key(), artifact())

        def read(*args, act=act) -> bytes:
            if "artifact.bin" in args:
                monkeypatch.setattr(module, "_read_file", real)
                act()
            return real(*args)

        monkeypatch.setattr(module, "_read_file", read)
        assert local.read(key()) == expected


def test_trim_leaves_room_and_only_one_process_does_it(local):
    size = fill(local, {name: number for number, name in enumerate("abcdefghijkl")})
    lock = FileLock.take(local.root / "locks" / layout.GC_LOCK)
    assert trim(local.root, 10 * size) is None
    lock.release()
    outcome = trim(local.root, 10 * size)
    assert outcome.after == 9 * size
    assert trim(local.root, 9 * size).removed == ()
    assert list((local.root / "locks").iterdir()) == []


def test_absent_directory_and_one_that_is_a_file(tmp_path):
    assert collect(tmp_path / "absent", max_bytes=0).to_json() == {"removed": [], "freed_bytes": 0, "before_bytes": 0, "after_bytes": 0}
    assert not (tmp_path / "absent").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError):
        collect(tmp_path / "file", max_bytes=0)


def test_cache_stays_within_its_size(tmp_path):
    size = fill(LocalStore(tmp_path / "sample"), {"a": 0})
    root = tmp_path / "cache"
    cache = Cache(options(root, cache_size=5 * size))
    with heard() as texts:
        for number in range(20):
            cache.put(key(str(number)), artifact())
            assert collect(root, dry_run=True).before <= 5 * size
            assert cache._local.read(key(str(number))) is not None, "what was published last stays"
        store._memory.clear()
        assert cache.lookup(key("0")).level == "memory"
    assert texts == []
    assert stats().evicted >= 15
    unlimited = Cache(options(tmp_path / "other", cache_size="unlimited"))
    for number in range(20):
        unlimited.put(key(str(number)), artifact())
    assert len(list(LocalStore(tmp_path / "other").stored_keys())) == 20


def test_entry_larger_than_the_cache_is_kept_in_memory(tmp_path):
    cache = Cache(options(tmp_path / "cache", cache_size=1000))
    with heard() as texts:
        for program in ("p0", "p1"):
            assert cache.obtain(key(program), "graph", lambda: artifact(bytes(2000))).level == "miss"
            assert cache.lookup(key(program)).level == "memory"
    [text] = texts
    assert "larger than cache_size" in text
    assert not Path(tmp_path / "cache" / f"v{FORMAT}").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("20GB", 20 * 10**9),
        ("1.5 tb", 15 * 10**11),
        ("8GiB", 8 * 2**30),
        ("512M", 512 * 10**6),
        ("64KiB", 65536),
        ("1000", 1000),
        (1000, 1000),
        ("0", None),
        (0, None),
        ("unlimited", None),
    ],
)
def test_sizes(given, expected):
    assert options(Path("x"), cache_size=given).cache_bytes == expected
    assert Options.resolve({}, environ={"NEURON_DYNAMO_CACHE_SIZE": str(given)}).cache_bytes == expected


@pytest.mark.parametrize("given", ["", "much", "-1", "10iB", "1e9", "10PB", True, "10 GB or so"])
def test_what_is_no_size(given):
    with pytest.raises(OptionError, match=r"option 'cache_size' is .*\n.*or 'unlimited'"):
        options(Path("x"), cache_size=given)
