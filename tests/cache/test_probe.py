"""An entry that kills the process which loads it does so at most once."""

import faulthandler
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dynamo.cache import probe, remote_level, store
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.compilers.host import HostCompiler
from neuron_dynamo.errors import CacheWarning
from neuron_dynamo.lowering.program import Signature
from tests.cache.doubles import Double, obtain, options
from tests.cache.fatal import SIGNALS
from tests.host_programs import add, spec

ROOT = Path(__file__).parents[2]
LOADER = "tests.cache.fatal:run"


def new_process(monkeypatch):
    monkeypatch.setattr(store, "_memory", {})
    monkeypatch.setattr(remote_level, "_levels", {})


def marks(root):
    return sorted(path.name for path in (root / "loading").iterdir()) if (root / "loading").exists() else []


def in_a_child(work):
    """Exit code of a process made by fork in which `work` returns or dies."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            faulthandler.disable()
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_restart_recovers(tmp_path, monkeypatch):
    maker = Double(made=lambda stablehlo: b"die 7" if stablehlo == b"stablehlo 0" else stablehlo)
    maker.load = lambda artifact, signature: artifact
    for number in range(2):
        obtain(maker, number, options(tmp_path))
    new_process(monkeypatch)
    assert in_a_child(lambda: obtain(Double(), 1, options(tmp_path))) == 0
    assert marks(tmp_path) == []
    assert in_a_child(lambda: obtain(Double(), 0, options(tmp_path))) == -7
    [mark] = marks(tmp_path)
    compiler = Double(made=lambda stablehlo: b"harmless " + stablehlo)
    with pytest.warns(
        CacheWarning, match=r"is bad and was moved to .*: .*its bytes are intact, but a process that loads it dies"
    ) as caught:
        assert obtain(compiler, 0, options(tmp_path)) == (b"harmless stablehlo 0", "miss")
    assert len(caught) == 1
    assert obtain(compiler, 1, options(tmp_path)) == (b"stablehlo 1", "disk")
    assert marks(tmp_path) == []
    [aside] = (tmp_path / "quarantine").iterdir()
    assert aside.name.startswith(mark[:64])
    assert (aside / "artifact.bin").read_bytes() == b"die 7"
    new_process(monkeypatch)
    assert obtain(compiler, 0, options(tmp_path)) == (b"harmless stablehlo 0", "disk")


def test_what_died_for_another_reason_is_tried_and_kept(tmp_path, monkeypatch):
    """A process that was killed at that very moment leaves the same mark; the probe finds nothing wrong."""
    compiler = Double()
    obtain(compiler, 0, options(tmp_path))
    new_process(monkeypatch)
    [found] = LocalStore(tmp_path).stored_keys()
    (tmp_path / "loading").mkdir(exist_ok=True)
    (tmp_path / "loading" / f"{found.digest}.{'0' * 12}").write_text("")
    assert probe.has_killed(tmp_path, found.digest)
    tried = []
    real = probe.survives
    monkeypatch.setattr(probe, "survives", lambda *args: tried.append(args) or real(*args))
    assert obtain(compiler, 0, options(tmp_path)) == (b"code of stablehlo 0", "disk")
    assert tried == [(LOADER, b"code of stablehlo 0")]
    assert marks(tmp_path) == []
    new_process(monkeypatch)
    assert obtain(compiler, 0, options(tmp_path))[1] == "disk"
    assert len(tried) == 1


def test_mark_of_a_living_process_accuses_nobody(tmp_path):
    with probe.marked(tmp_path, "a" * 64):
        [name] = marks(tmp_path)
        assert name.startswith("a" * 64 + ".")
        assert not probe.has_killed(tmp_path, "a" * 64)
        probe.forgive(tmp_path, "a" * 64)
        assert marks(tmp_path) == [name]
        (tmp_path / "loading" / f"{'b' * 64}.{'0' * 12}").write_text("")
        assert not probe.has_killed(tmp_path, "a" * 64)
        assert probe.has_killed(tmp_path, "b" * 64)
    assert marks(tmp_path) == [f"{'b' * 64}.{'0' * 12}"]
    probe.forgive(tmp_path, "b" * 64)
    assert marks(tmp_path) == []


def test_an_error_while_loading_leaves_no_mark(tmp_path):
    with pytest.raises(ValueError, match="refused"), probe.marked(tmp_path, "a" * 64):
        raise ValueError("refused")
    assert marks(tmp_path) == []


def test_no_marks_where_there_can_be_none(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with probe.marked(tmp_path / "file", "a" * 64):
        assert not probe.has_killed(tmp_path / "file", "a" * 64)

    def no_locks(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with probe.marked(tmp_path, "a" * 64):
        pass
    assert marks(tmp_path) == []
    monkeypatch.undo()
    compiler = Double()
    obtain(compiler, 0, options(tmp_path / "on"))
    before = sorted((tmp_path / "on").rglob("*"))
    monkeypatch.setattr(store, "_memory", {})
    assert obtain(compiler, 0, options(tmp_path / "on", cache="readonly"))[1] == "disk"
    assert sorted((tmp_path / "on").rglob("*")) == before


def test_remote_entry_is_tried_before_it_is_loaded(tmp_path, monkeypatch):
    """Also the first time on this machine: in a container without a lasting directory each start would be the first."""
    remote = f"file://{tmp_path}/remote"
    deadly = Double(made=lambda stablehlo: b"die 11")
    deadly.load = lambda artifact, signature: artifact
    obtain(deadly, 0, options(tmp_path / "a", cache_remote=remote))
    monkeypatch.setattr(probe, "_probes", {})
    compiler = Double()
    with pytest.warns(CacheWarning, match="a process that loads it dies") as caught:
        assert obtain(compiler, 0, options(tmp_path / "b", cache_remote=remote)) == (b"code of stablehlo 0", "miss")
    assert len(caught) == 1
    # What was made in its place is there for everybody.
    assert obtain(compiler, 0, options(tmp_path / "c", cache_remote=remote)) == (b"code of stablehlo 0", "remote")
    assert len(compiler.asked) == 1
    [tried] = probe._probes.values()  # one process for all
    assert tried.alive
    probe._close_all()
    assert not tried.alive


def test_layer_entry_that_killed_is_passed_over(tmp_path, monkeypatch):
    deadly = Double(made=lambda stablehlo: b"die 11")
    deadly.load = lambda artifact, signature: artifact
    obtain(deadly, 0, options(tmp_path / "layer"))
    [found] = LocalStore(tmp_path / "layer").stored_keys()
    own = tmp_path / "own" / "loading"
    own.mkdir(parents=True)
    (own / f"{found.digest}.{'0' * 12}").write_text("")
    given = options(tmp_path / "own", cache_layers=[tmp_path / "layer"])
    with pytest.warns(CacheWarning, match="which lies elsewhere, is bad and was ignored: .* dies"):
        assert obtain(Double(), 0, given) == (b"code of stablehlo 0", "miss")
    new_process(monkeypatch)
    assert obtain(Double(), 0, given)[1] == "disk"


def test_verdicts(monkeypatch):
    for number in SIGNALS:
        assert not probe.survives(LOADER, f"die {int(number)}".encode()), number
    assert not probe.survives(LOADER, b"exit 3")  # it would have ended this process as well
    assert probe.survives(LOADER, b"die 9")  # somebody killed the probe: that says nothing
    assert probe.survives(LOADER, b"raise")  # `load` will raise here, too
    assert probe.survives(LOADER, b"")
    assert probe.survives(LOADER, bytes(3_000_000))
    assert probe.survives("tests.cache.no_such_module:run", b"die 11")
    monkeypatch.setattr(probe, "PATIENCE", 1.0)
    assert not probe.survives(LOADER, b"hang")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert probe.survives(LOADER, b"die 11")
    probe._close_all()


def test_idle_probe_goes_away(monkeypatch):
    monkeypatch.setattr(probe, "IDLE", 0.05)
    assert probe.survives(LOADER, b"")
    deadline = time.monotonic() + 300
    while probe._probes and time.monotonic() < deadline:
        time.sleep(0.02)
    assert probe._probes == {}


def test_child_made_by_fork_has_a_probe_of_its_own():
    assert probe.survives(LOADER, b"")
    [mine] = probe._probes.values()

    def work():
        assert probe.survives(LOADER, b"x")
        assert not probe.survives(LOADER, b"die 11")
        probe._close_all()

    assert in_a_child(work) == 0
    assert mine.alive
    assert probe.survives(LOADER, b"y")
    probe._close_all()


def test_host_compiler_is_probed_without_torch(tmp_path):
    """With XLA's own code, whole and damaged, in a process that imports neither torch nor Torch-MLIR."""
    compiler = HostCompiler()
    artifact = compiler.compile(add(spec(4)))
    assert isinstance(compiler, probe.Probed)
    loader, code = compiler.dangerous_part(artifact)
    assert probe.survives(loader, code)
    [process] = probe._probes.values()
    maps = Path(f"/proc/{process._process.pid}/maps").read_text()
    assert "jaxlib" in maps
    assert "libtorch" not in maps
    assert probe.survives(loader, b"garbage")
    probe._close_all()


def test_a_different_signature_is_refused(tmp_path, monkeypatch):
    """A manifest is only text: what it says of inputs and outputs must be what the program says."""
    compiler = Double()
    obtain(compiler, 0, options(tmp_path))
    [found] = LocalStore(tmp_path).stored_keys()
    LocalStore(tmp_path).write(found, replace(LocalStore(tmp_path).read(found), signature=Signature((), ())), replace=True)
    new_process(monkeypatch)
    with pytest.warns(CacheWarning, match="its inputs and outputs are not those of the program"):
        assert obtain(compiler, 0, options(tmp_path))[1] == "miss"


def test_marking_is_cheap(tmp_path):
    """The hit path has 10 ms for a graph; CPU time, since the machine may be busy."""
    with probe.marked(tmp_path, "a" * 64):
        pass
    start = time.process_time()
    for _ in range(100):
        assert not probe.has_killed(tmp_path, "a" * 64)
        with probe.marked(tmp_path, "a" * 64):
            pass
    assert (time.process_time() - start) / 100 < 0.002
