"""A compiler's own failures are remembered with reason, identity and age; those of the moment are not."""

import json
import re
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

import neuron_dynamo.compile as story
from neuron_dynamo.cache import Cache, counters, failures, store
from neuron_dynamo.cache.entry import PAYLOAD, encode_entry
from neuron_dynamo.cache.failures import MAX_AGE, Failure, failure_key
from neuron_dynamo.cache.key import program_key
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.errors import CacheMissError, CacheWarning, CompilerError, NeffError, PreflightError, SourceLine
from tests.cache.doubles import Double, obtain, options, program, report
from tests.cache.samples import artifact, key

SOURCE = SourceLine("model.py", 12, "layers.0", "x.argsort()")


def refusing(*numbers, error=None):
    """A compiler that fails, by its own account, on programs of these numbers."""
    error = error or CompilerError(
        "exit code 70: NCC_EVRF029", op="sort", source=SOURCE, remedy="avoid sort", vendor_code="NCC_EVRF029", log="log"
    )

    def made(stablehlo):
        if int(stablehlo.split()[1]) in numbers:
            raise error
        return b"code of " + stablehlo

    return Double(made=made)


def new_process(monkeypatch):
    monkeypatch.setattr(store, "_memory", {})


def test_one_of_64_graphs_fails(tmp_path, monkeypatch):
    compiler = refusing(17)

    def attempt(number):
        try:
            return obtain_with(compiler, number, tmp_path)
        except CompilerError as error:
            return error

    def obtain_with(compiler, number, root):
        return obtain(compiler, number, options(root))[1]

    first = [attempt(number) for number in range(64)]
    assert [number for number, level in enumerate(first) if level != "miss"] == [17]
    assert not first[17].remembered
    assert len(compiler.asked) == 64
    new_process(monkeypatch)
    second = [attempt(number) for number in range(64)]
    assert [number for number, level in enumerate(second) if level != "disk"] == [17]
    assert len(compiler.asked) == 64
    assert second[17].remembered
    assert (counters.stats().failures, counters.stats().remembered) == (1, 1)
    compiler = Double(version="2")
    assert [attempt(number) for number in range(64)] == ["miss"] * 64
    assert len(compiler.asked) == 64


def test_remembered_error_is_the_same_and_says_so(tmp_path):
    compiler = refusing(0)
    with pytest.raises(CompilerError) as first:
        obtain(compiler, 0, options(tmp_path))
    with pytest.raises(CompilerError) as again:
        obtain(compiler, 0, options(tmp_path))
    assert len(compiler.asked) == 1
    error = again.value
    assert (error.op, error.source, error.vendor_code, error.log) == ("sort", SOURCE, "NCC_EVRF029", "log")
    assert not error.transient
    text = str(error)
    assert text.startswith("ND020: exit code 70: NCC_EVRF029\n")
    assert re.search(
        r"remembered: double 1 failed on this program on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(\d+ seconds ago\), and it was not run again", text
    )
    assert "after 7 days" in text
    assert 'avoid sort; cache="refresh" runs the compiler again at once' in text
    assert str(first.value) not in text


def test_class_of_the_error_is_kept(tmp_path):
    compiler = refusing(0, error=NeffError("no NEFF"))
    for remembered in (False, True):
        with pytest.raises(NeffError, match="ND024: no NEFF") as caught:
            obtain(compiler, 0, options(tmp_path))
        assert caught.value.remembered == remembered


@pytest.mark.parametrize(
    "error",
    [
        CompilerError("out of memory", transient=True),
        PreflightError("ours", ()),
        MemoryError(),
        OSError(28, "No space left"),
        KeyboardInterrupt(),
        TimeoutError(),
    ],
)
def test_what_the_moment_did_is_never_remembered(tmp_path, error):
    compiler = refusing(0, error=error)
    for _ in range(2):
        with pytest.raises(type(error)):
            obtain(compiler, 0, options(tmp_path))
    assert len(compiler.asked) == 2
    assert list(LocalStore(tmp_path).stored_keys()) == []


def test_refresh_runs_the_compiler_again_and_success_forgets(tmp_path, monkeypatch):
    """The stub is repaired under the same identity: nothing but refresh can know."""
    broken, repaired = refusing(0), Double()
    with pytest.raises(CompilerError):
        obtain(broken, 0, options(tmp_path))
    for _ in range(2):
        with pytest.raises(CompilerError) as caught:
            obtain(broken, 0, options(tmp_path, cache="refresh"))
        assert not caught.value.remembered
    assert len(broken.asked) == 3
    assert obtain(repaired, 0, options(tmp_path, cache="refresh"))[1] == "miss"
    new_process(monkeypatch)
    assert obtain(repaired, 0, options(tmp_path))[1] == "disk"
    assert [found.kind for found in LocalStore(tmp_path).stored_keys()] == ["artifact"]


def test_age(tmp_path, monkeypatch):
    now = [time.time()]
    monkeypatch.setattr(failures.time, "time", lambda: now[0])
    compiler = refusing(0)

    def asked():
        before = len(compiler.asked)
        with pytest.raises(CompilerError):
            obtain(compiler, 0, options(tmp_path))
        return len(compiler.asked) - before

    assert [asked(), asked()] == [1, 0]
    now[0] += MAX_AGE - 60
    assert asked() == 0
    now[0] += 120
    assert [asked(), asked()] == [1, 0]  # it failed anew, which is remembered anew
    now[0] -= 3600  # another machine's clock
    assert asked() == 0
    now[0] -= 10 * MAX_AGE  # a failure of the far future is not believed
    assert [asked(), asked()] == [1, 0]


@pytest.mark.parametrize(("mode", "runs"), [("off", 2), ("readonly", 1)])
def test_modes_that_write_nothing(tmp_path, mode, runs):
    compiler = refusing(0)
    for _ in range(2):
        with pytest.raises(CompilerError):
            obtain(compiler, 0, options(tmp_path / "on"))
    assert len(compiler.asked) == 1
    for _ in range(2):
        with pytest.raises(CompilerError):
            obtain(compiler, 0, options(tmp_path / "on", cache=mode))
    assert len(compiler.asked) == (3 if mode == "off" else 1)
    for _ in range(2):
        with pytest.raises(CompilerError), warnings.catch_warnings(action="ignore"):
            obtain(compiler, 0, options(tmp_path / "new", cache=mode))
    assert len(compiler.asked) == (3 if mode == "off" else 1) + runs
    assert not (tmp_path / "new").exists()


def test_require_names_the_failure(tmp_path):
    compiler = refusing(0)
    with pytest.raises(CompilerError):
        obtain(compiler, 0, options(tmp_path))
    with pytest.raises(CacheMissError, match="the compiler failed on it when the cache was warmed: exit code 70: NCC_EVRF029"):
        obtain(compiler, 0, options(tmp_path, cache="require"))
    with pytest.raises(CacheMissError) as caught:
        obtain(compiler, 1, options(tmp_path, cache="require"))
    assert "exit code 70" not in str(caught.value)


def test_threads_that_need_the_same_graph_ask_once(tmp_path):
    gate = threading.Event()

    def made(stablehlo):
        gate.wait()
        raise CompilerError("exit code 70")

    compiler = Double(made=made)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(story, "compiler_for", lambda options: compiler)
        done = [pool.submit(story.obtain, program(0), options(tmp_path), report()) for _ in range(4)]
        gate.set()
        assert {type(future.exception()) for future in done} == {CompilerError}
    assert len(compiler.asked) == 1


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"what": 1}', b"[" * 100_000, b"\xff", b'{"what": "x", "at": "never"}'])
def test_entry_that_does_not_say_what_failed_is_put_aside(tmp_path, payload):
    compiler = Double()
    own = program_key(program(0).digest, options(tmp_path).resolved_target, options(tmp_path), compiler)
    LocalStore(tmp_path).write(failure_key(own), artifact(payload))
    with pytest.warns(CacheWarning, match="does not say what failed"):
        assert obtain(compiler, 0, options(tmp_path))[1] == "miss"


def test_failure_survives_its_entry():
    failure = Failure.of(CompilerError("x" * 1000, op="sort", source=SOURCE, log="l"), key())
    kept = failure.to_artifact(program(3))
    assert Failure.from_artifact(kept) == failure
    assert json.loads(encode_entry(failure_key(key()), kept)[PAYLOAD])["what"] == "x" * 1000
    assert failure_key(key()).kind == "failure"
    assert failure_key(key()).digest != key().digest
    assert failure_key(key("p1")).digest != failure_key(key()).digest


def test_failures_stay_here(tmp_path):
    remote = f"file://{tmp_path}/remote"
    with pytest.raises(CompilerError):
        obtain(refusing(0), 0, options(tmp_path / "a", cache_remote=remote))
    compiler = Double()
    assert obtain(compiler, 0, options(tmp_path / "b", cache_remote=remote, cache_layers=[tmp_path / "a"]))[1] == "miss"
    assert (
        Cache(options(tmp_path / "c", cache_remote=remote)).level(
            program_key(program(0).digest, options(tmp_path).resolved_target, options(tmp_path), compiler)
        )
        == "remote"
    )
