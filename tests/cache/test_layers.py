"""Levels below the writable directory as the cache uses them: read-only layers, then the remote."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import uuid
import warnings
from pathlib import Path

import pytest

from neuron_dynamo.cache import Cache, Lookup, counters, layers, remote_level, store
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.remote import RemoteStore
from neuron_dynamo.errors import CacheMissError, CacheWarning
from neuron_dynamo.options import Options
from tests.cache.doubles import Double, obtain, options
from tests.cache.remotes import scripted
from tests.cache.samples import artifact, key


def new_process(monkeypatch):
    monkeypatch.setattr(store, "_memory", {})
    monkeypatch.setattr(remote_level, "_levels", {})
    monkeypatch.setattr(layers, "_shunned", set())


def tree(root):
    return sorted((path.relative_to(root).as_posix(), path.lstat().st_mtime_ns) for path in root.rglob("*"))


@pytest.fixture
def layered(tmp_path):
    """Options with two layers, of which the first has p0 and p1, the second p1 and p2, and a remote that has p3."""
    LocalStore(tmp_path / "near").write(key("p0"), artifact(b"near 0"))
    LocalStore(tmp_path / "near").write(key("p1"), artifact(b"near 1"))
    LocalStore(tmp_path / "far").write(key("p1"), artifact(b"far 1"))
    LocalStore(tmp_path / "far").write(key("p2"), artifact(b"far 2"))
    remote = f"file://{tmp_path}/remote"
    RemoteStore(remote, 300).write(key("p3"), artifact(b"remote 3"))
    return {"cache_layers": [tmp_path / "near", tmp_path / "far"], "cache_remote": remote}


def test_order_of_levels(tmp_path, layered, monkeypatch):
    given = options(tmp_path / "own", **layered)
    before = tree(tmp_path / "near"), tree(tmp_path / "far")
    assert [Cache(given).level(key(name)) for name in ("p0", "p1", "p2", "p3", "p4")] == ["layer", "layer", "layer", "remote", "miss"]
    assert counters.stats() == counters.CacheStats()
    cache = Cache(given)
    assert cache.lookup(key("p0")) == Lookup("layer", artifact(b"near 0"))
    assert cache.lookup(key("p1")) == Lookup("layer", artifact(b"near 1"))
    assert cache.lookup(key("p2")) == Lookup("layer", artifact(b"far 2"))
    assert cache.lookup(key("p3")) == Lookup("remote", artifact(b"remote 3"))
    assert cache.lookup(key("p4")) == Lookup("miss", None)
    assert [cache.lookup(key(name)).level for name in ("p0", "p1", "p2", "p3")] == ["memory"] * 4
    # A hit in a layer is not copied, one at the remote is.
    assert {found.digest for found in LocalStore(tmp_path / "own").stored_keys()} == {key("p3").digest}
    new_process(monkeypatch)
    shutil.rmtree(tmp_path / "remote")
    assert [Cache(given).lookup(key(name)).level for name in ("p0", "p3")] == ["layer", "disk"]
    assert (tree(tmp_path / "near"), tree(tmp_path / "far")) == before
    counts = counters.stats()
    assert (counts.layer, counts.remote, counts.disk, counts.miss, counts.memory) == (4, 1, 1, 1, 4)
    assert counts.hits == 10


def test_what_is_made_here_comes_before_layers(tmp_path, layered, monkeypatch):
    given = options(tmp_path / "own", **layered)
    LocalStore(tmp_path / "own").write(key("p0"), artifact(b"own"))
    assert Cache(given).lookup(key("p0")) == Lookup("disk", artifact(b"own"))
    refresh = options(tmp_path / "own", cache="refresh", **layered)
    for name in ("p1", "p3"):
        assert Cache(refresh).obtain(key(name), "", lambda: artifact(b"anew")).level == "miss"
        new_process(monkeypatch)
        assert Cache(given).lookup(key(name)) == Lookup("disk", artifact(b"anew"))
    assert RemoteStore(layered["cache_remote"], 300).read(key("p3")) == artifact(b"anew")


@pytest.mark.parametrize("mode", ["readonly", "require"])
def test_modes(tmp_path, layered, mode):
    (tmp_path / "own").mkdir()
    cache = Cache(options(tmp_path / "own", cache=mode, **layered))
    assert [cache.lookup(key(name)).level for name in ("p0", "p3")] == ["layer", "remote"]
    assert cache.obtain(key("p1"), "", lambda: pytest.fail("compiled")).level == "layer"
    # A download is kept wherever that is allowed: the next start then needs no network.
    assert [found.digest for found in LocalStore(tmp_path / "own").stored_keys()] == ([key("p3").digest] if mode == "require" else [])
    if mode == "require":
        with pytest.raises(
            CacheMissError, match=r"graph g is not in the cache directory .*/own, nor in its layers, nor at file://.*/remote"
        ):
            cache.obtain(key("p9"), "g", lambda: pytest.fail("compiled"))
    else:
        assert cache.obtain(key("p9"), "", artifact).level == "miss"
        assert not RemoteStore(layered["cache_remote"], 300).has(key("p9"))


def test_off_asks_nobody(tmp_path, layered):
    cache = Cache(options(tmp_path / "own", cache="off", **layered))
    assert [cache.lookup(key(name)).level for name in ("p0", "p3")] == ["miss", "miss"]
    assert cache.level(key("p3")) == "miss"


def test_what_is_compiled_is_uploaded_and_found_elsewhere(tmp_path):
    remote = {"cache_remote": f"memory://{uuid.uuid4().hex}"}
    compiler = Double()
    assert obtain(compiler, 0, options(tmp_path / "a", **remote)) == (b"code of stablehlo 0", "miss")
    assert obtain(compiler, 0, options(tmp_path / "b", **remote)) == (b"code of stablehlo 0", "remote")
    assert obtain(compiler, 0, options(tmp_path / "b")) == (b"code of stablehlo 0", "memory")
    assert obtain(compiler, 1, options(tmp_path / "a", cache_uploads="off", **remote))[1] == "miss"
    assert obtain(compiler, 1, options(tmp_path / "b", **remote))[1] == "miss"
    assert len(compiler.asked) == 3
    assert (counters.stats().uploaded, counters.stats().stored) == (2, 3)


HOSTILE = {
    "truncated": lambda path: os.truncate(path / "artifact.bin", 1),
    "flipped": lambda path: (path / "artifact.bin").write_bytes(b"compiled bytez"),
    "longer": lambda path: os.truncate(path / "artifact.bin", 2**40),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "huge manifest": lambda path: os.truncate(path / "manifest.json", 2**40),
    "manifest of garbage": lambda path: (path / "manifest.json").write_bytes(b"\x80\x04\x95garbage"),
    "manifest is a pipe": lambda path: replaced(path / "manifest.json", os.mkfifo),
    "link": lambda path: replaced(path / "artifact.bin", lambda file: file.symlink_to("/dev/zero")),
    "pipe": lambda path: replaced(path / "artifact.bin", os.mkfifo),
    "folder": lambda path: replaced(path / "artifact.bin", os.mkdir),
    "claims": lambda path: claim(path, 2**60),
}


def replaced(path, make):
    path.unlink()
    make(path)


def claim(path, size):
    """A manifest that is right in all but the size that it announces, as is the file of that size."""
    data = json.loads((path / "manifest.json").read_bytes())
    del data["sha256"]
    data["files"]["artifact.bin"]["size"] = size
    data["sha256"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(data))
    os.truncate(path / "artifact.bin", 2**40)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("place", ["own", "layer"])
def test_hostile_entry_costs_a_recompile_at_worst(tmp_path, monkeypatch, kind, place):
    root = tmp_path / place
    LocalStore(root).write(key(), artifact())
    HOSTILE[kind](LocalStore(root).entry_path(key()))
    before = tree(root)
    given = options(tmp_path / "own", cache_layers=[tmp_path / "layer"] if place == "layer" else [])
    with pytest.warns(CacheWarning, match=f"entry {key().digest} is bad") as caught:
        assert Cache(given).obtain(key(), "", lambda: artifact(b"anew")) == Lookup("miss", artifact(b"anew"))
    assert len(caught) == 1
    if place == "layer":
        assert tree(root) == before
    new_process(monkeypatch)
    assert Cache(given).lookup(key()) == Lookup("disk", artifact(b"anew"))


def test_next_layer_has_it(tmp_path):
    for name in ("near", "far"):
        LocalStore(tmp_path / name).write(key(), artifact(name.encode()))
    os.truncate(LocalStore(tmp_path / "near").entry_path(key()) / "artifact.bin", 1)
    cache = Cache(options(tmp_path / "own", cache_layers=[tmp_path / "near", tmp_path / "far"]))
    with pytest.warns(CacheWarning, match="cache layer .*near: entry .* is bad and was ignored"):
        assert cache.lookup(key()) == Lookup("layer", artifact(b"far"))


def test_layers_in_trouble_cost_one_warning_each(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "open").mkdir()
    LocalStore(tmp_path / "open").write(key(), artifact())
    (tmp_path / "open").chmod(0o777)
    bad = [tmp_path / "absent", tmp_path / "file", tmp_path / "open"]
    LocalStore(tmp_path / "good").write(key(), artifact())
    cache = Cache(options(tmp_path / "own", cache_layers=[*bad, tmp_path / "good"]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cache.lookup(key()) == Lookup("layer", artifact())
        for number in range(5):
            assert cache.lookup(key(str(number))).level == "miss"
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 3
    for path, text, reason in zip(bad, texts, ("is not there", "Not a directory", "every user may write"), strict=True):
        assert text.startswith(f"ND130: cache layer {path}: ")
        assert reason in text


def test_rejected_entries_of_layers_and_remote_are_not_served_again(tmp_path, monkeypatch):
    remote = f"memory://{uuid.uuid4().hex}"
    for place in ("layer", "remote"):
        given = {"cache_layers": [tmp_path / "layer"]} if place == "layer" else {"cache_remote": remote}
        if place == "layer":
            LocalStore(tmp_path / "layer").write(key(place), artifact())
        else:
            RemoteStore(remote, 300).write(key(place), artifact())
        cache = Cache(options(tmp_path / place / "own", **given))
        assert cache.lookup(key(place)).level == place
        with pytest.warns(CacheWarning, match="bad and was .*: no good") as caught:
            cache.reject(key(place), "no good")
        assert len(caught) == 1
        assert cache.lookup(key(place)).level == "miss"
        assert cache.obtain(key(place), "", lambda: artifact(b"anew")).level == "miss"
        new_process(monkeypatch)
        assert Cache(options(tmp_path / place / "own", **given)).lookup(key(place)) == Lookup("disk", artifact(b"anew"))
    assert RemoteStore(remote, 300).read(key("remote")) == artifact(b"anew")


def test_compiling_does_not_begin_before_the_remote_has_answered(tmp_path):
    with scripted() as script:
        RemoteStore("scripted://cache", 300).write(key(), artifact())
        script.gate, script.calls[:] = threading.Event(), []
        found = []
        cache = Cache(options(tmp_path, cache_remote="scripted://cache"))
        thread = threading.Thread(target=lambda: found.append(cache.obtain(key(), "", lambda: pytest.fail("compiled"))))
        thread.start()
        while not script.calls:
            assert thread.is_alive()
            time.sleep(0.01)
        time.sleep(0.2)
        assert not found
        script.gate.set()
        thread.join()
        assert (found[0].level, found[0].artifact) == ("remote", artifact())


def test_failing_remote_never_stops_a_job(tmp_path):
    with scripted() as script:
        script.fault = ConnectionError("down")
        compiler = Double()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(20):
                assert obtain(compiler, number, options(tmp_path, cache_remote="scripted://cache"))[1] == "miss"
        [text] = [str(warning.message) for warning in caught]
        assert "cache remote scripted://cache: ConnectionError: down; work goes on" in text
        assert len(script.calls) == 1
        assert len(list(LocalStore(tmp_path).stored_keys())) == 20


def test_threads_download_once(tmp_path):
    with scripted() as script:
        RemoteStore("scripted://cache", 300).write(key(), artifact())
        script.gate, script.calls[:] = threading.Event(), []
        given, levels = options(tmp_path, cache_remote="scripted://cache"), []

        def look():
            levels.append(Cache(given).obtain(key(), "", lambda: pytest.fail("compiled")).level)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        script.gate.set()
        for thread in threads:
            thread.join()
        assert sorted(levels) == ["memory", "memory", "memory", "remote"]
        assert script.calls.count("read") == 3  # the manifest and two files


def test_processes_share_a_remote_and_need_no_network_later(tmp_path, monkeypatch):
    """Two machines: this process, and one with a directory of its own; later this one works with the remote gone."""
    script = """
        import sys
        from tests.cache.doubles import Double, obtain, options
        compiler = Double()
        print(*(obtain(compiler, number, options(sys.argv[1], cache_remote=sys.argv[2]))[1] for number in range(4)), len(compiler.asked))
    """
    remote, compiler = f"file://{tmp_path}/remote", Double()

    def levels(own):
        return [obtain(compiler, number, options(tmp_path / own, cache_remote=remote))[1] for number in range(4)]

    for number in range(3):
        obtain(compiler, number, options(tmp_path / "a", cache_remote=remote))
    command = [sys.executable, "-c", textwrap.dedent(script), tmp_path / "b", remote]
    other = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert other.stdout.split() == ["remote", "remote", "remote", "miss", "1"], other.stderr
    assert levels("a") == ["memory", "memory", "memory", "remote"]
    shutil.rmtree(tmp_path / "remote")
    new_process(monkeypatch)
    assert levels("b") == ["disk", "disk", "disk", "disk"]
    assert len(compiler.asked) == 3


def test_options(tmp_path):
    given = Options.resolve({}, environ={"NEURON_DYNAMO_CACHE_LAYERS": "/a:~/b:relative:"})
    assert given.layer_paths == (Path("/a"), Path.home() / "b", Path.cwd() / "relative")
    assert options(tmp_path, cache_layers=[Path("/a")]).cache_layers == ("/a",)
    assert options(tmp_path, cache_layers="/a").layer_paths == (Path("/a"),)
    with pytest.raises(ValueError, match="cache_layers"):
        options(tmp_path, cache_layers=[1])


def test_a_copied_directory_is_a_layer(tmp_path):
    """A layer is made by copying a cache directory, as an image build does."""
    Cache(options(tmp_path / "built")).put(key(), artifact())
    shutil.copytree(tmp_path / "built", tmp_path / "image")
    assert Cache(options(tmp_path / "own", cache_layers=[tmp_path / "image"])).lookup(key()).level == "layer"
