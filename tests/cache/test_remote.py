"""RemoteStore and RemoteLevel against a real S3 server, files, memory, and remotes that are slow, hang, fail, refuse or lie."""

import hashlib
import json
import os
import re
import sys
import threading
import time
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest

import neuron_dynamo
from neuron_dynamo.cache import Cache, counters, remote_level
from neuron_dynamo.cache.entry import BadEntry, encode_entry
from neuron_dynamo.cache.remote import RemoteError, RemoteStore
from neuron_dynamo.cache.remote_level import RemoteLevel, remote_for
from neuron_dynamo.errors import CacheWarning, OptionError
from neuron_dynamo.options import Options
from tests.cache.remotes import s3_environment, s3_server, scripted
from tests.cache.samples import artifact, key

PATIENCE = 300.0


@pytest.fixture(scope="module")
def s3():
    with s3_server() as address, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(address).items():
            patch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        yield "s3://bucket"


@pytest.fixture(params=["s3", "file", "memory"])
def url(request, tmp_path):
    root = {"s3": lambda: request.getfixturevalue("s3"), "file": lambda: f"file://{tmp_path}/remote", "memory": lambda: "memory://cache"}
    return f"{root[request.param]()}/{uuid.uuid4().hex}"


@pytest.fixture
def memory():
    return f"memory://cache/{uuid.uuid4().hex}"


@pytest.fixture
def script():
    with scripted() as kind:
        yield kind


def paths(url):
    filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    return sorted(path[len(root) :].lstrip("/") for path in filesystem.find(root))


def put(url, path, data):
    with fsspec.open(f"{url}/{path}", "wb") as file:
        file.write(data)


def manifest_path(name="p0"):
    return f"v1/{key(name).digest[:2]}/{key(name).digest}.json"


def texts(caught):
    assert all(warning.category is CacheWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def test_round_trip(url):
    store = RemoteStore(url, PATIENCE)
    assert store.read(key()) is None
    assert not store.has(key())
    assert store.write(key(), artifact())
    assert store.has(key())
    assert RemoteStore(url, PATIENCE).read(key()) == artifact()
    assert store.read(key("p1")) is None
    files = {hashlib.sha256(data).hexdigest() for data in (artifact().payload, *artifact().blobs.values())}
    assert set(paths(url)) == {manifest_path(), *(f"objects/{name[:2]}/{name}" for name in files)}


def test_empty_and_large_files(url, monkeypatch):
    monkeypatch.setattr("neuron_dynamo.cache.remote.CHUNK", 1000)
    store = RemoteStore(url, PATIENCE)
    for name, content in (("empty", b""), ("even", bytes(range(250)) * 12), ("odd", b"x" * 3001)):
        store.write(key(name), artifact(content))
        assert store.read(key(name)) == artifact(content)


def test_what_is_there_stays_unless_it_is_to_be_replaced(url):
    store = RemoteStore(url, PATIENCE)
    store.write(key(), artifact(b"first"))
    assert not store.write(key(), artifact(b"second"))
    assert store.read(key()) == artifact(b"first")
    assert store.write(key(), artifact(b"second"), replace=True)
    assert store.read(key()) == artifact(b"second")


def test_no_entry_without_its_manifest_and_none_without_its_objects(url):
    store = RemoteStore(url, PATIENCE)
    store.write(key(), artifact())
    filesystem, root = fsspec.core.url_to_fs(url)
    contents = {path: filesystem.cat_file(f"{root}/{path}") for path in paths(url)}
    for path in contents:
        filesystem.rm_file(f"{root}/{path}")
    for path in sorted(contents, key=lambda path: path.endswith(".json")):
        assert store.read(key()) is None
        put(url, path, contents[path])
    assert store.read(key()) == artifact()
    filesystem.rm_file(f"{root}/{next(path for path in contents if not path.endswith('.json'))}")
    with pytest.raises(BadEntry, match="is missing"):
        store.read(key())


def test_writers_of_one_entry_do_not_mix_theirs(url):
    """XLA's code differs from one compile to the next; whoever reads gets one whole entry."""
    store = RemoteStore(url, PATIENCE)
    good = [artifact(bytes([number]) * 1000) for number in range(3)]
    seen, done = [], threading.Event()

    def read():
        while not done.is_set():
            seen.append(store.read(key()))

    with ThreadPoolExecutor(4) as pool:
        reader = pool.submit(read)
        list(pool.map(lambda own: [store.write(key(), own, replace=True) for _ in range(2)], good))
        done.set()
        reader.result()
    assert all(found is None or found in good for found in seen)
    assert store.read(key()) in good


HOSTILE = {
    "empty": lambda manifest: b"",
    "no JSON": lambda manifest: b"\x80\x04\x95garbage",
    "cut short": lambda manifest: manifest[: len(manifest) // 2],
    "one bit": lambda manifest: manifest.replace(b'"p0"', b'"p1"', 1),
    "deep": lambda manifest: b"[" * 200_000,
    "long": lambda manifest: b" " * 20_000_000,
    "not an object": lambda manifest: b"[1, 2, 3]",
    "size": lambda manifest: resigned(manifest, size=10**18),
    "negative size": lambda manifest: resigned(manifest, size=-1),
    "fractional size": lambda manifest: resigned(manifest, size=1e300),
    "path for a checksum": lambda manifest: resigned(manifest, sha256="../../../etc/passwd"),
    "path for a name": lambda manifest: resigned(manifest, name="../../escape"),
    "list of files": lambda manifest: resigned(manifest, files=[]),
    "format": lambda manifest: manifest.replace(b'"format": 1', b'"format": 999'),
    "other key": lambda manifest: encode_entry(key("p1"), artifact())["manifest.json"],
}


def resigned(manifest, *, name="artifact.bin", files=None, **fields):
    """A manifest changed by somebody who knows how to make its checksum right."""
    data = json.loads(manifest)
    del data["sha256"]
    if files is not None:
        data["files"] = files
    else:
        data["files"][name] = {**data["files"].pop("artifact.bin"), **fields}
    data["sha256"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return json.dumps(data).encode()


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_manifest_is_a_bad_entry(kind, memory):
    store = RemoteStore(memory, PATIENCE)
    store.write(key(), artifact())
    put(memory, manifest_path(), HOSTILE[kind](encode_entry(key(), artifact())["manifest.json"]))
    with pytest.raises(BadEntry):
        store.read(key())
    assert store.write(key(), artifact(), replace=True)
    assert store.read(key()) == artifact()


def test_hostile_manifests_on_s3_are_bad_entries_too(s3):
    """Above all the empty one: S3 answers a range of it with an error."""
    store = RemoteStore(f"{s3}/{uuid.uuid4().hex}", PATIENCE)
    for kind in ("empty", "no JSON", "size"):
        put(store.url, manifest_path(), HOSTILE[kind](encode_entry(key(), artifact())["manifest.json"]))
        with pytest.raises(BadEntry):
            store.read(key())


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"x", lambda data: b"", None])
def test_damaged_object_is_a_bad_entry(memory, damage):
    store, url = RemoteStore(memory, PATIENCE), memory
    store.write(key(), artifact())
    checksum = hashlib.sha256(artifact().payload).hexdigest()
    path = f"objects/{checksum[:2]}/{checksum}"
    if damage is None:
        filesystem, root = fsspec.core.url_to_fs(url)
        filesystem.rm_file(f"{root}/{path}")
    else:
        put(url, path, damage(artifact().payload))
    with pytest.raises(BadEntry, match=r"artifact\.bin (is missing|does not match its checksum)"):
        store.read(key())


def test_files_that_are_none(tmp_path):
    """Where a remote is a directory, its entries are not led out of it, and do not wait for a writer that never comes."""
    secret = tmp_path / "secret"
    secret.write_bytes(encode_entry(key(), artifact())["manifest.json"])
    store = RemoteStore(f"file://{tmp_path}/remote", PATIENCE)
    store.write(key(), artifact())
    path = tmp_path / "remote" / manifest_path()
    for replace in (lambda: path.symlink_to(secret), lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), path.mkdir):
        path.unlink()
        replace()
        with pytest.raises(BadEntry, match="is not a plain file"):
            store.read(key())


def test_a_directory_is_written_at_once(tmp_path, monkeypatch):
    """Elsewhere than in an object store, a reader must not see what is half written."""
    from fsspec.implementations.local import LocalFileSystem

    final = []
    real = LocalFileSystem.pipe_file
    monkeypatch.setattr(
        LocalFileSystem, "pipe_file", lambda self, path, *args, **kwargs: (final.append(path), real(self, path, *args, **kwargs))
    )
    RemoteStore(f"file://{tmp_path}/remote", PATIENCE).write(key(), artifact())
    assert len(final) == 3
    assert all(path.endswith(".draft") and not Path(path).exists() for path in final)


def test_failed_draft_is_removed(tmp_path, monkeypatch):
    from fsspec.implementations.local import LocalFileSystem

    def fail(*args, **kwargs):
        raise OSError("no room")

    monkeypatch.setattr(LocalFileSystem, "mv", fail)
    store = RemoteStore(f"file://{tmp_path}/remote", PATIENCE)
    with pytest.raises(RemoteError, match="no room"):
        store.write(key(), artifact())
    assert paths(store.url) == []


# Policy


def test_slow_remote_is_waited_for(script):
    store = RemoteStore("scripted://cache", PATIENCE)
    store.write(key(), artifact())
    script.gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(RemoteLevel(store, True).read, key())
        while script.calls[-1] != "read":
            assert not answer.done()
            time.sleep(0.01)
        assert not answer.done()
        script.gate.set()
        assert answer.result() == artifact()


def test_silent_remote_costs_one_timeout_and_one_warning(script):
    script.gate = threading.Event()
    level = RemoteLevel(RemoteStore("scripted://cache", 0.05), True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert level.read(key()) is None
        asked = len(script.calls)
        for name in map(str, range(20)):
            assert level.read(key(name)) is None
            assert not level.has(key(name))
            level.write(key(name), artifact())
    assert len(script.calls) == asked == 1
    [text] = texts(caught)
    assert re.search(r"ND130: cache remote scripted://cache: no answer for 0 s; work goes on without it.* after 60 s", text)
    assert counters.stats().errors == 1


@pytest.mark.parametrize(
    "fault", [OSError("down"), ValueError("odd"), TimeoutError("server"), KeyError("x"), RuntimeError(), ConnectionResetError()]
)
def test_failing_remote_costs_one_warning_and_is_asked_again_later(script, monkeypatch, fault):
    now = [1000.0]
    monkeypatch.setattr(remote_level.time, "monotonic", lambda: now[0])
    level = RemoteLevel(RemoteStore("scripted://cache", PATIENCE), True)
    level.write(key(), artifact())
    script.fault = fault
    asked = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(240):
            before = len(script.calls)
            assert level.read(key()) is None
            if len(script.calls) > before:
                asked.append(now[0] - 1000)
            now[0] += 10
    assert asked == [0, 60, 180, 420, 900, 1860]
    [text] = texts(caught)
    assert type(fault).__name__ in text
    script.fault = None
    now[0] += 3600
    assert level.read(key()) == artifact()
    script.fault = fault
    assert level.read(key()) is None
    now[0] += 60
    script.fault = None
    assert level.read(key()) == artifact()  # after an answer, the pauses begin anew


def test_remote_that_refuses_uploads_is_still_read(script):
    RemoteStore("scripted://cache", PATIENCE).write(key(), artifact())
    script.refuses_writes = True
    level = RemoteLevel(RemoteStore("scripted://cache", PATIENCE), True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        level.write(key("p1"), artifact())
        level.write(key("p2"), artifact())
    [text] = texts(caught)
    assert "Access Denied" in text
    assert 'cache_uploads="off"' in text
    assert script.calls.count("write") == 4  # three of the entry that was there, and one that was refused
    assert level.read(key()) == artifact()


def test_bad_entry_costs_one_warning_and_is_replaced_by_the_next_upload(memory):
    level = RemoteLevel(RemoteStore(memory, PATIENCE), True)
    level.write(key(), artifact())
    put(memory, manifest_path(), b"{}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert level.read(key()) is None
        assert level.read(key()) is None
        assert not level.has(key())
    [text] = texts(caught)
    assert f"entry {key().digest} is bad and was ignored" in text
    assert counters.stats().quarantined == 1
    level.write(key(), artifact(b"anew"))
    assert level.read(key()) == artifact(b"anew")
    assert counters.stats().uploaded == 2


def test_server_that_is_not_there_and_bucket_that_is_not_there(s3, monkeypatch):
    with pytest.raises(RemoteError, match="no such bucket"):
        RemoteStore("s3://no-such-bucket/x", PATIENCE).read(key())
    with pytest.raises(RemoteError, match=r"bucket does not exist|no such bucket"):
        RemoteStore("s3://no-such-bucket/x", PATIENCE).write(key(), artifact())
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    nobody = {"client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}, "config_kwargs": {"retries": {"max_attempts": 0}}}
    with pytest.raises(RemoteError, match="Could not connect"):
        RemoteStore(f"{s3}/x", PATIENCE, nobody).read(key())


@pytest.mark.parametrize(
    ("url", "absent", "expected"),
    [
        ("memory://x", "fsspec", "pip install 'fsspec'.*neuron-dynamo.remote"),
        ("s3://x/y", "s3fs", "pip install 's3fs'.*neuron-dynamo.remote"),
    ],
)
def test_missing_package_is_one_warning_with_the_command(monkeypatch, url, absent, expected):
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # it was imported before
    for name in [name for name in sys.modules if name.partition(".")[0] == absent]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, absent, None)
    level = RemoteLevel(RemoteStore(url, PATIENCE), True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert level.read(key()) is None
        level.write(key(), artifact())
    [text] = texts(caught)
    assert re.search(expected, text)


def test_unknown_protocol_is_one_warning():
    level = RemoteLevel(RemoteStore("zz://x", PATIENCE), True)
    with pytest.warns(CacheWarning, match="Protocol not known: zz") as caught:
        assert level.read(key()) is None
    assert len(caught) == 1


def test_fsspec_is_imported_for_a_remote_only(tmp_path, monkeypatch):
    imported = []
    monkeypatch.setattr("neuron_dynamo.cache.remote.importlib.import_module", lambda name: imported.append(name) or fsspec)
    for remote, expected in ((None, []), (f"file://{tmp_path}/remote", ["fsspec"])):
        cache = Cache(Options.resolve({"cache_dir": tmp_path / "own", "cache_remote": remote}, environ={}))
        assert cache.lookup(key()).level == "miss"
        assert imported == expected
    package = Path(neuron_dynamo.__file__).parent
    importing = [path for path in package.rglob("*.py") if re.search(r"^\s*(import|from) (fsspec|s3fs)", path.read_text(), re.MULTILINE)]
    assert importing == []


# Options


def test_options():
    options = Options.resolve(
        {"cache_remote": "s3://b/x", "cache_remote_options": {"b": 1, "a": True}, "cache_remote_timeout": "2.5", "cache_uploads": "off"},
        environ={},
    )
    assert options.cache_remote_options == '{"a": true, "b": 1}'
    assert options.cache_remote_timeout == 2.5
    assert hash(options) == hash(Options.resolve(dict(vars(options)), environ={}))
    given = {"NEURON_DYNAMO_CACHE_REMOTE": "s3://b/x", "NEURON_DYNAMO_CACHE_REMOTE_OPTIONS": '{"a":true,"b":1}'}
    assert Options.resolve({}, environ=given).cache_remote_options == options.cache_remote_options
    for name, value in (
        ("cache_remote_options", "[1]"),
        ("cache_remote_options", "{"),
        ("cache_remote_timeout", 0),
        ("cache_remote_timeout", "x"),
    ):
        with pytest.raises(OptionError, match=name):
            Options.resolve({name: value}, environ={})
    with pytest.raises(OptionError) as error:
        Options.resolve({"cache_remote_options": "{secret"}, environ={})
    assert "secret" not in str(error.value)


def test_one_level_for_each_setting(memory):
    def level(**given):
        return remote_for(Options.resolve({"cache_remote": memory, **given}, environ={}))

    assert level() is level()
    assert level(cache_remote_timeout=1) is not level()
    assert level(cache="off") is None
    assert remote_for(Options.resolve({}, environ={})) is None
    for mode, uploads in (("on", 1), ("refresh", 1), ("readonly", 0), ("require", 0)):
        before = counters.stats().uploaded
        level(cache=mode).write(key(mode), artifact())
        assert counters.stats().uploaded - before == uploads
    level(cache_uploads="off").write(key("off"), artifact())
    assert level().read(key("off")) is None
