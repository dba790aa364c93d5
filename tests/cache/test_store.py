import contextlib
import errno
import os
import re
import shutil
import threading
import warnings

import pytest

from neuron_dynamo.cache import Cache, CacheStats, Lookup, stats, store
from neuron_dynamo.cache.key import FORMAT
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.locks import FileLock
from neuron_dynamo.cache.memory import MemoryStore
from neuron_dynamo.errors import CacheMissError, CacheWarning
from neuron_dynamo.options import Options
from tests.cache.children import heard
from tests.cache.samples import artifact, key, options


def new_process(monkeypatch):
    monkeypatch.setattr(store, "_memory", {})


def tree(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


@contextlib.contextmanager
def one_warning(pattern):
    """The block issues exactly one CacheWarning, and its text holds `pattern`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    [warning] = caught
    assert warning.category is CacheWarning
    assert re.search(pattern, str(warning.message))


@pytest.fixture(autouse=True)
def no_unexpected_warning(recwarn):
    yield
    assert [str(warning.message) for warning in recwarn if issubclass(warning.category, CacheWarning)] == []


def test_levels(tmp_path, monkeypatch):
    cache = Cache(options(tmp_path))
    assert cache.lookup(key()) == Lookup("miss", None)
    cache.put(key(), artifact())
    assert cache.lookup(key()) == Lookup("memory", artifact())
    assert Cache(options(tmp_path)).lookup(key()).level == "memory"
    new_process(monkeypatch)
    assert Cache(options(tmp_path)).lookup(key()) == Lookup("disk", artifact())
    assert Cache(options(tmp_path)).lookup(key()).level == "memory"
    assert stats() == CacheStats(memory=3, disk=1, miss=1, stored=1)


def test_another_directory_is_another_cache(tmp_path):
    Cache(options(tmp_path / "a")).put(key(), artifact())
    other = Cache(options(tmp_path / "b"))
    assert other.lookup(key()).level == "miss"
    other.put(key(), artifact())
    assert LocalStore(tmp_path / "b").read(key()) == artifact()


def test_off_neither_reads_nor_writes(tmp_path):
    Cache(options(tmp_path)).put(key(), artifact())
    off = Cache(options(tmp_path, "off"))
    assert off.lookup(key()) == Lookup("miss", None)
    off.put(key("p1"), artifact())
    assert LocalStore(tmp_path).read(key("p1")) is None
    assert Cache(options(tmp_path)).lookup(key("p1")).level == "miss"


def test_readonly_reads_and_creates_nothing(tmp_path, monkeypatch):
    Cache(options(tmp_path / "cache")).put(key(), artifact())
    LocalStore(tmp_path / "cache").write(key("bad"), artifact())
    os.truncate(LocalStore(tmp_path / "cache").entry_path(key("bad")) / "artifact.bin", 1)
    before = tree(tmp_path / "cache")
    new_process(monkeypatch)
    cache = Cache(options(tmp_path / "cache", "readonly"))
    assert cache.lookup(key()).level == "disk"
    assert cache.lookup(key("p1")).level == "miss"
    cache.put(key("p1"), artifact())
    assert cache.lookup(key("p1")).level == "memory"
    with pytest.warns(CacheWarning, match="is bad and was ignored"):
        assert cache.lookup(key("bad")).level == "miss"
    assert tree(tmp_path / "cache") == before


def test_readonly_without_directory_warns_and_creates_nothing(tmp_path):
    cache = Cache(options(tmp_path / "absent", "readonly"))
    with one_warning("ND130.*absent: it does not exist"):
        assert cache.lookup(key()).level == "miss"
        assert cache.lookup(key("p1")).level == "miss"
        cache.put(key(), artifact())
    assert not (tmp_path / "absent").exists()


def test_what_readonly_kept_in_memory_reaches_the_disk_when_writing_is_allowed(tmp_path):
    Cache(options(tmp_path, "readonly")).put(key(), artifact())
    assert tree(tmp_path) == []
    assert Cache(options(tmp_path)).lookup(key()).level == "memory"
    assert LocalStore(tmp_path).read(key()) == artifact()


def test_require_names_graph_and_differing_part(tmp_path):
    require = Cache(options(tmp_path, "require"))
    with pytest.raises(CacheMissError, match=r"graph forward 0 is not in .* holds no entry"):
        require.lookup(key("p1"), "forward 0")
    on = Cache(options(tmp_path))
    on.put(key("p0", lnc="1", precision="warn"), artifact())
    on.put(key("p1", lnc="1", precision="warn"), artifact())
    with pytest.raises(CacheMissError) as caught:
        require.lookup(key("p1", lnc="2", precision="warn"), "forward 0")
    assert "ND030: graph forward 0 is not in" in str(caught.value)
    assert "differs in lnc is '2', stored '1'" in str(caught.value)
    assert "program" not in str(caught.value)
    assert require.lookup(key("p1", lnc="1", precision="warn")).artifact == artifact()


def test_require_says_that_the_entry_itself_is_bad(tmp_path, monkeypatch):
    Cache(options(tmp_path)).put(key(), artifact())
    (LocalStore(tmp_path).entry_path(key()) / "artifact.bin").write_bytes(b"compiled bytez")
    new_process(monkeypatch)
    with (
        pytest.warns(CacheWarning, match="artifact.bin does not match"),
        pytest.raises(CacheMissError, match="has its entry, but that is bad"),
    ):
        Cache(options(tmp_path, "require")).lookup(key())


def test_readonly_directory_above_layers_need_not_be_there(tmp_path):
    """A container image's layers are all that a job there reads; that it has no directory of its own is no trouble."""
    Cache(options(tmp_path / "layer")).put(key(), artifact())
    above = Options.resolve({"cache": "readonly", "cache_dir": str(tmp_path / "none"), "cache_layers": [str(tmp_path / "layer")]}, {})
    with heard() as texts:
        assert Cache(above).lookup(key()).level == "layer"
    assert texts == []


def test_bad_entry_is_quarantined_with_one_warning_and_rebuilt(tmp_path, monkeypatch):
    Cache(options(tmp_path)).put(key(), artifact())
    (LocalStore(tmp_path).entry_path(key()) / "artifact.bin").write_bytes(b"compiled bytez")
    new_process(monkeypatch)
    cache = Cache(options(tmp_path))
    with pytest.warns(CacheWarning, match="artifact.bin does not match its checksum") as caught:
        assert cache.lookup(key()).level == "miss"
    assert len(caught) == 1
    [kept] = (tmp_path / "quarantine").iterdir()
    assert (kept / "artifact.bin").read_bytes() == b"compiled bytez"
    cache.put(key(), artifact())
    assert LocalStore(tmp_path).read(key()) == artifact()
    assert (stats().quarantined, stats().miss) == (1, 1)


def test_reject_drops_an_intact_entry(tmp_path):
    cache = Cache(options(tmp_path))
    cache.put(key(), artifact())
    with pytest.warns(CacheWarning, match="made for another machine"):
        cache.reject(key(), "made for another machine")
    assert cache.lookup(key()).level == "miss"
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("call", ["mkdir", "makedirs", "fsync", "rename"])
def test_directory_failing_at_any_step_costs_one_warning(tmp_path, monkeypatch, call, number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number), args[0])

    cache = Cache(options(tmp_path / "cache"))
    monkeypatch.setattr(os, call, fail)
    with one_warning("ND130.*kept in memory alone"):
        for program in ("p0", "p1", "p2"):
            cache.put(key(program), artifact(program.encode()))
            assert cache.lookup(key(program)) == Lookup("memory", artifact(program.encode()))
    monkeypatch.undo()
    assert not (tmp_path / "cache" / "v1").exists() or list((tmp_path / "cache" / "v1").rglob("manifest.json")) == []


def test_path_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        cache = Cache(options(root))
        with one_warning("Not a directory|File exists"):
            assert cache.lookup(key()).level == "miss"
            cache.put(key(), artifact())
            assert cache.lookup(key()).level == "memory"
    assert (tmp_path / "file").read_text() == "mine"


def test_directory_removed_under_us_comes_back(tmp_path):
    cache = Cache(options(tmp_path / "cache"))
    cache.put(key(), artifact())
    shutil.rmtree(tmp_path / "cache")
    assert cache.lookup(key()).level == "memory"
    cache.put(key("p1"), artifact())
    assert {found.digest for found in LocalStore(tmp_path / "cache").stored_keys()} == {key().digest, key("p1").digest}


def test_directory_removed_during_a_write_costs_one_warning(tmp_path, monkeypatch):
    rename = os.rename

    def too_late(source, destination):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        rename(source, destination)

    monkeypatch.setattr(os, "rename", too_late)
    cache = Cache(options(tmp_path / "cache"))
    with one_warning("No such file"):
        cache.put(key(), artifact())
        assert cache.lookup(key()).level == "memory"
    monkeypatch.undo()
    cache.put(key(), artifact())
    assert LocalStore(tmp_path / "cache").read(key()) == artifact()


def test_unreadable_entry_is_a_miss_and_stays_in_place(tmp_path, monkeypatch):
    LocalStore(tmp_path).write(key(), artifact())
    real = os.open

    def denied(path, *args, **kwargs):
        if str(path).endswith(key().digest):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", denied)
    with pytest.warns(CacheWarning, match="Permission denied"):
        assert Cache(options(tmp_path)).lookup(key()).level == "miss"
    monkeypatch.undo()
    assert LocalStore(tmp_path).read(key()) == artifact()
    assert stats().errors == 1


def test_warning_turned_into_error_leaves_the_artifact_usable(tmp_path):
    (tmp_path / "file").write_text("")
    cache = Cache(options(tmp_path / "file"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CacheWarning):
            cache.put(key(), artifact())
    assert cache.lookup(key()) == Lookup("memory", artifact())


def test_memory_drops_the_least_recently_used():
    memory = MemoryStore(capacity=3 * artifact().size)
    for program in ("p0", "p1", "p2"):
        memory.write(key(program), artifact())
    assert memory.read(key("p0")) == artifact()
    memory.write(key("p3"), artifact())
    assert [memory.read(key(program)) is None for program in ("p0", "p1", "p2", "p3")] == [False, True, False, False]
    memory.write(key("huge"), artifact(bytes(10_000)))
    assert memory.read(key("huge")) == artifact(bytes(10_000))
    assert memory.read(key("p0")) is None
    memory.write(key("p0"), artifact())
    assert memory.read(key("huge")) is None


def test_threads_share_one_cache(tmp_path):
    failures = []

    def work(number):
        cache = Cache(options(tmp_path))
        for program in map(str, range(10)):
            found = cache.lookup(key(program)).artifact
            if found is None:
                cache.put(key(program), artifact(program.encode()))
                found = cache.lookup(key(program)).artifact
            if found != artifact(program.encode()):
                failures.append((number, program))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert stats().memory + stats().disk >= 80
    assert len(list(LocalStore(tmp_path).stored_keys())) == 10


def test_obtain_makes_what_is_missing_and_finds_it_again(tmp_path, monkeypatch):
    cache = Cache(options(tmp_path / "cache"))
    made = []

    def make():
        made.append(1)
        return artifact()

    assert cache.obtain(key(), "graph", make) == Lookup("miss", artifact())
    assert cache.obtain(key(), "graph", make) == Lookup("memory", artifact())
    new_process(monkeypatch)
    assert Cache(options(tmp_path / "cache")).obtain(key(), "graph", make) == Lookup("disk", artifact())
    assert made == [1]
    assert (stats().miss, stats().memory, stats().disk, stats().stored, stats().waits) == (1, 1, 1, 1, 0)
    with pytest.raises(CacheMissError, match="graph forward 0 is not in"):
        Cache(options(tmp_path / "cache", "require")).obtain(key("p1"), "forward 0", make)
    assert made == [1]


def test_obtain_without_cache_or_without_writing(tmp_path):
    off, readonly = Cache(options(tmp_path / "cache", "off")), Cache(options(tmp_path / "cache", "readonly"))
    assert [off.obtain(key(), "graph", artifact).level for _ in range(2)] == ["miss", "miss"]
    with one_warning("it does not exist"):
        assert [readonly.obtain(key(), "graph", artifact).level for _ in range(2)] == ["miss", "memory"]
    assert not (tmp_path / "cache").exists()


def test_refresh_makes_each_entry_anew_once_for_each_process(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    Cache(options(root)).put(key(), artifact(b"old"))
    Cache(options(root)).put(key("p1"), artifact(b"untouched"))
    for content in (b"new", b"newer"):
        new_process(monkeypatch)
        monkeypatch.setattr(store, "_refreshed", set())
        refresh = Cache(options(root, "refresh"))
        assert refresh.lookup(key()).level == refresh.level(key()) == "miss"
        assert refresh.obtain(key(), "graph", lambda content=content: artifact(content)).level == "miss"
        assert refresh.level(key()) == "memory"
        assert refresh.obtain(key(), "graph", lambda: artifact(b"never")) == Lookup("memory", artifact(content))
        assert LocalStore(root).read(key()) == artifact(content)
    assert LocalStore(root).read(key("p1")) == artifact(b"untouched")
    assert Cache(options(root)).lookup(key()).artifact == artifact(b"newer")
    assert os.listdir(root / "tmp") == []


def test_refresh_takes_what_another_process_made_anew_meanwhile(tmp_path, monkeypatch):
    """Ranks that refresh together compile once."""
    root = tmp_path / "cache"
    LocalStore(root).write(key(), artifact(b"old"))
    cache = Cache(options(root, "refresh"))
    monkeypatch.setattr(store, "_refreshed", set())

    def wait_for(path, patience):
        LocalStore(root).write(key(), artifact(b"made by another"), replace=True)
        return FileLock.take(path)

    monkeypatch.setattr(store, "wait_for", wait_for)
    found = cache.obtain(key(), "graph", lambda: artifact(b"made here"))
    assert (found.level, found.artifact, found.waited > 0) == ("disk", artifact(b"made by another"), True)


def test_a_damaged_disk_costs_one_warning(tmp_path, monkeypatch):
    damaged = [key(f"p{number}") for number in range(3)]
    for each in damaged:
        LocalStore(tmp_path).write(each, artifact())
        os.truncate(LocalStore(tmp_path).entry_path(each) / "artifact.bin", 1)
    new_process(monkeypatch)
    cache = Cache(options(tmp_path))
    with one_warning(f"entry {damaged[0].digest} is bad and was moved"):
        assert [cache.obtain(each, "graph", lambda: artifact(b"anew")).level for each in damaged] == ["miss"] * 3
    assert [LocalStore(tmp_path).read(each) for each in damaged] == [artifact(b"anew")] * 3
    assert stats().quarantined == 3


@pytest.mark.parametrize("mode", ["on", "readonly"])
def test_rejected_entry_that_cannot_be_moved_is_not_read_again(tmp_path, monkeypatch, mode):
    """Else the caller would find it again and again."""
    root = tmp_path / "cache"
    LocalStore(root).write(key(), artifact(b"bad"))

    def refuse(*args):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(LocalStore, "quarantine", refuse)
    cache = Cache(options(root, mode))
    assert cache.lookup(key()).level == "disk"
    with heard() as texts:
        cache.reject(key(), "made for another machine")
    assert sum("is bad and was ignored" in text for text in texts) == 1
    assert cache.lookup(key()).level == "miss"
    assert cache.obtain(key(), "graph", lambda: artifact(b"good")) == Lookup("miss", artifact(b"good"))
    assert cache.lookup(key()).artifact == artifact(b"good")
    assert LocalStore(root).read(key()) == artifact(b"good" if mode == "on" else b"bad")


def test_bad_entry_that_was_replaced_meanwhile_stays(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    LocalStore(root).write(key(), artifact(b"bad"))
    (LocalStore(root).entry_path(key()) / "artifact.bin").write_bytes(b"worse")
    quarantine = LocalStore.quarantine

    def late(self, of, identity):
        quarantine(LocalStore(root), of)
        LocalStore(root).write(key(), artifact(b"good"))
        return quarantine(self, of, identity)

    monkeypatch.setattr(LocalStore, "quarantine", late)
    assert Cache(options(root)).lookup(key()).level == "miss"
    assert LocalStore(root).read(key()) == artifact(b"good")


def test_newer_entry_is_left_alone_with_one_warning(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    for program in ("p0", "p1"):
        LocalStore(root).write(key(program), artifact())
        manifest = LocalStore(root).entry_path(key(program)) / "manifest.json"
        manifest.write_text(manifest.read_text().replace(f'"format": {FORMAT}', '"format": 999'))
    before = tree(root)
    cache = Cache(options(root))
    with one_warning("its format is 999, which is newer than"):
        for program in ("p0", "p1"):
            assert cache.obtain(key(program), "graph", artifact).level == "miss"
            assert cache.obtain(key(program), "graph", artifact).level == "memory"
    assert tree(root) == before
