"""NeuronxCompiler over the double of neuronx-cc: what it is given, what is kept, and every way in which it fails."""

from __future__ import annotations

import os
import shlex
import shutil
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neuron_dynamo.cache import program_key, store
from neuron_dynamo.compile import obtain
from neuron_dynamo.compilers import compiler_for
from neuron_dynamo.compilers.neuronx import EmulatingCompiler, NeuronxCompiler, process
from neuron_dynamo.compilers.neuronx.artifact import NeuronArtifact, neff_trouble, unpack
from neuron_dynamo.compilers.neuronx.progress import Progress
from neuron_dynamo.errors import (
    CacheMissError,
    CompilerError,
    CompilerMissingError,
    CompilerWarning,
    NoDeviceWarning,
    PreflightError,
    SourceLine,
)
from neuron_dynamo.lowering.hlo import emit
from neuron_dynamo.lowering.program import OpSource, Program
from neuron_dynamo.options import Options
from neuron_dynamo.report import GraphReport
from tests.compilers.neuronx.test_process import gone, time_flies
from tests.doubles import neff_writer
from tests.host_programs import program, spec

Make = Callable[..., Options]
REAL_PATH = os.environ.get("PATH")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiles take place, so that a test sees what they leave."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def test_what_the_compiler_is_given(options: Make, adding: Program, runs, scratch: Path) -> None:
    made = NeuronxCompiler(options()).compile(adding)
    (run,) = runs()
    folder = Path(run["cwd"])
    neff = folder / f"module_{adding.digest[:16]}.neff"
    flags = shlex.split("--framework XLA --target trn2 --lnc 2 -O2 --auto-cast none --native-int64 enabled --implicit-integer-downcast all")
    log = folder / "log-neuron-cc.txt"
    assert run["argv"] == ["compile", str(folder / "module.hlo.pb"), *flags, "--output", str(neff), "--logfile", str(log)]
    assert run["files"] == ["module.hlo.pb"] and folder.parent == scratch
    assert [p.name for p in scratch.iterdir() if not p.name.startswith("neuron_dynamo_compiles_")] == []
    assert made.blobs["command.txt"].decode() == f"neuronx-cc compile module.hlo.pb {' '.join(flags)}\n"
    assert made.blobs["module.hlo.pb"] == emit(adding).proto
    assert "Compiler status PASS" in made.log and "INFO fake neuronx-cc" in made.log


def test_the_artifact(options: Make, adding: Program) -> None:
    made = unpack(NeuronxCompiler(options()).compile(adding).payload)
    assert (made.target, made.lnc, made.version, made.stablehlo) == ("trn2", 2, "2.27.5334.0+f702b353", adding.stablehlo)
    assert len(made.neff) > 1024


def test_stablehlo_instead_of_hlo(options: Make, runs) -> None:
    of = spec(4)
    made = program([of], "%0 = stablehlo.negate %a0 : tensor<4xf32>", ["%0"], [of])
    aliased = replace(made, signature=replace(made.signature, aliases=((0, 0),)))
    compiled = NeuronxCompiler(options(neuronx_cc_input="stablehlo")).compile(aliased)
    assert runs()[0]["argv"][1].endswith("/module.mlir")
    assert compiled.blobs["module.mlir"].startswith(b"ML\xefR")


def test_one_key_for_one_command_line(options: Make, adding: Program) -> None:
    def key(**given: object) -> str:
        made = options(**given)
        return program_key(adding.digest, made.resolved_target, made, NeuronxCompiler(made)).digest

    plain = key()
    assert key(compiler_timeout=5, compiler_jobs=7) == plain
    others = [key(lnc=1), key(target="trn1"), key(compiler_args="-O1"), key(neuronx_cc_input="stablehlo")]
    flags = Options.resolve(
        {"target": "trn2", "compiler": str(options().compiler)}, environ={"NEURON_CC_FLAGS": "--model-type=transformer"}
    )
    others.append(program_key(adding.digest, flags.resolved_target, flags, NeuronxCompiler(flags)).digest)
    assert len({plain, *others}) == 6
    identity = dict(NeuronxCompiler(options()).identity())
    assert identity["version"] == "2.27.5334.0+f702b353" and "--framework=XLA" in identity["arguments"]
    same = [key(compiler_args=args) for args in ("--enable-saturate-infinity -O1", "--optlevel=1 --enable-saturate-infinity")]
    assert same[0] == same[1] != plain


def test_run_on_the_host_without_a_device(options: Make, adding: Program) -> None:
    compiler = NeuronxCompiler(options())
    executable = compiler.load(compiler.compile(adding).payload, adding.signature)
    a, b = torch.randn(8), torch.randn(8)
    with pytest.warns(NoDeviceWarning, match=r"ND141: no Neuron device: programs that neuronx-cc 2\.27\S+ compiled for trn2 run on"):
        (result,) = executable([a, b])
    assert torch.equal(result, a + b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said
        executable([a, b])
        again = compiler.load(compiler.compile(adding).payload, adding.signature)
        assert torch.equal(again([a, a])[0], a + a)


def test_never_on_the_host(options: Make, adding: Program) -> None:
    compiler = NeuronxCompiler(options(emulate="never"))
    payload = compiler.compile(adding).payload
    with pytest.raises(CompilerMissingError, match="no Neuron device on this machine"):
        compiler.load(payload, adding.signature)


def test_without_a_compiler(tmp_path: Path, adding: Program) -> None:
    with pytest.raises(CompilerMissingError, match="target 'trn2' needs its compiler: neuronx-cc is not on PATH") as caught:
        compiler_for(Options.resolve({"target": "trn2"}, environ={}))
    assert '{"emulate": "always"}' in caught.value.remedy
    compiler = compiler_for(Options.resolve({"target": "trn2", "emulate": "always"}, environ={}))
    assert isinstance(compiler, EmulatingCompiler)
    a = torch.randn(8)
    with pytest.warns(NoDeviceWarning, match="neuronx-cc is not on PATH, and emulate='always': programs for trn2 were not compiled for it"):
        executable = compiler.load(compiler.compile(adding).payload, adding.signature)
    assert torch.equal(executable([a, a])[0], a + a)


def test_what_the_cache_holds_runs_without_the_compiler(options: Make, adding: Program, tmp_path: Path) -> None:
    """In the directory or a layer; another's arguments and what was never compiled are a miss, and then the compiler is missed."""
    with_it = options(cache_dir=str(tmp_path / "cache"))
    outcome = GraphReport("g", "inference")
    _, key, level = obtain(adding, with_it, outcome)
    assert level == "miss"

    def without(**given: object) -> Options:
        return Options.resolve({"target": "trn2", "cache_dir": str(tmp_path / "cache"), **given}, environ={})

    a = torch.randn(8)
    layered = without(cache_dir=str(tmp_path / "new"), cache_layers=[str(tmp_path / "cache")], cache="require")
    for places in (without(), without(cache="require"), layered):
        store._memory.clear()
        executable, found, level = obtain(adding, places, outcome)
        assert found == key and level in ("disk", "layer")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoDeviceWarning)
            assert torch.equal(executable([a, a])[0], a + a)
    with pytest.raises(CacheMissError, match=r"differs in .*compiler\.arguments is .*optlevel=1"):
        obtain(adding, without(cache="require", compiler_args="-O1"), outcome)
    with pytest.raises(CompilerMissingError, match=r"for a graph that the cache lacks: neuronx-cc is not on PATH; .* neuronx-cc 2\.27\S+"):
        obtain(refused(), without(), outcome)
    for nothing in (without(cache="off"), without(cache="refresh"), without(target="trn1"), without(lnc=1)):
        with pytest.raises(CompilerMissingError, match="needs its compiler: neuronx-cc is not on PATH"):
            obtain(adding, nothing, outcome)

    for named in (str(tmp_path / "nope"), "/bin/true"):
        with pytest.raises(CompilerMissingError, match=f"needs the compiler that option 'compiler' names: .*{named}") as caught:
            obtain(adding, without(compiler=named), outcome)
        assert "leave the option (or NEURON_DYNAMO_COMPILER) out" in caught.value.remedy


CHOLESKY = "%0 = stablehlo.cholesky %a0, lower = true : tensor<4x4xf32>\n%1 = stablehlo.cholesky %0, lower = true : tensor<4x4xf32>"


def refused() -> Program:
    of = spec(4, 4)
    made = program([of], CHOLESKY, ["%1"], [of])
    rows = [OpSource(i, "", "c", "aten.linalg_cholesky_ex.default", SourceLine("net.py", 40 + i)) for i in range(2)]
    return Program(made.stablehlo, made.signature, tuple(rows))


def test_preflight_tells_everything_before_the_compiler_starts(options: Make, runs) -> None:
    with pytest.raises(PreflightError, match="holds 2 things that the compiler for trn2 is published to refuse") as caught:
        NeuronxCompiler(options()).compile(refused())
    assert [(f.code, f.source.line) for f in caught.value.findings] == [("NCC_EVRF001", 40), ("NCC_EVRF001", 41)]
    assert "net.py:40" in str(caught.value) and "net.py:41" in str(caught.value)
    assert (caught.value.code, caught.value.transient, runs()) == ("ND022", False, [])
    with pytest.raises(PreflightError):
        EmulatingCompiler(options(), "").compile(refused())


def test_the_compiler_refuses_what_preflight_lets_pass(options: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The double finds the op on its own: its message comes back with the user's line."""
    monkeypatch.setattr("neuron_dynamo.compilers.neuronx.compiler.refuse", lambda *given: [])
    with pytest.raises(CompilerError, match=r"\[NCC_EVRF001\] Operator cholesky is not supported") as caught:
        NeuronxCompiler(options()).compile(refused())
    assert caught.value.source == SourceLine("net.py", 40)
    assert "aten.linalg_cholesky_ex.default %cholesky" in caught.value.op


@pytest.mark.parametrize("release", ["2.26.99.0", "2.27.5334.0"])
def test_an_older_compiler_keeps_32_bits(release: str, options: Make, runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = spec(dtype=torch.int64)
    text = f"%0 = stablehlo.constant dense<{2**40}> : tensor<i64>\n%1 = stablehlo.add %a0, %0 : tensor<i64>"
    monkeypatch.setenv("FAKE_NEURONX_CC_VERSION", release)
    own = tmp_path / "neuronx-cc"
    shutil.copy(str(options().compiler), own)
    compiler = NeuronxCompiler(options(compiler=str(own)))
    if release.startswith("2.26"):
        with pytest.warns(CompilerWarning, match="ND143: for trn2, fewer digits.*\n.*of which trn2 keeps 32 bits"):
            compiler.compile(program([of], text, ["%1"], [of]))
        assert "--native-int64" not in runs()[0]["argv"]
    else:
        compiler.compile(program([of], text, ["%1"], [of]))
        assert "--native-int64" in runs()[0]["argv"]


@pytest.mark.parametrize(
    ("fault", "says", "transient"),
    [
        ("exit70", r"refused the program: \[NCC_EVRF001\] Operator fake is not supported", False),
        ("wordless", "exit code 70", False),
        ("ncc:[NCC_ISGV902] odd", r"\[NCC_ISGV902\] odd", False),
        ("killed", "SIGKILL", True),
        ("aborted", "SIGABRT", True),
        ("oom", "most often for want of memory", True),
        ("disk", "full disk", True),
        ("missing", "reported success, but its NEFF cannot be used: it is not there", True),
        ("empty", "cannot be used: it is empty", True),
        ("garbage", "its header says that it has", True),
        ("partial", "its archive cannot be read", True),
    ],
)
def test_failures(fault, says, transient, options, adding, runs, monkeypatch):
    monkeypatch.setenv("FAKE_NEURONX_CC_FAULT", fault)
    with pytest.raises(CompilerError, match=says) as caught:
        NeuronxCompiler(options()).compile(adding)
    assert caught.value.transient == transient and "what to do" in str(caught.value)
    assert not Path(runs()[0]["cwd"]).exists()


def test_what_a_failed_compile_leaves_in_the_dump(options: Make, adding: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NEURONX_CC_FAULT", "exit70")
    with pytest.raises(CompilerError):
        NeuronxCompiler(options(dump_dir=tmp_path / "dump")).compile(adding)
    (folder,) = (tmp_path / "dump").iterdir()
    assert folder.name == f"failed-module_{adding.digest[:16]}"
    assert (folder / "module.hlo.pb").read_bytes() == emit(adding).proto
    assert "NCC_EVRF001" in (folder / "log.txt").read_text()
    assert (folder / "command.txt").read_text().startswith("neuronx-cc compile module.hlo.pb --framework XLA")


@pytest.mark.parametrize("compress", [True, False])
def test_every_cut_of_a_neff_is_seen(compress: bool) -> None:
    body = neff_writer.archive({"kelf-a.json": b"{}", "sg00/def.json": bytes(range(256)) * 99}, compress=compress)
    neff = neff_writer.header(body, 2) + body
    assert neff_trouble(neff) == ""
    # A plain archive ends in blocks of zeros, which say nothing.
    for cut in (1, 9, len(body) // 2) if compress else (len(body) * 3 // 4,):
        assert "cannot be read" in neff_trouble(neff[:-cut]), cut
    empty = neff_writer.archive({}, compress=compress)
    assert neff_trouble(neff_writer.header(empty, 2) + empty) == "its archive is empty"
    assert "a NEFF's header alone has 1024" in neff_trouble(neff[:1024])


def test_a_flood_of_words(options: Make, adding: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NEURONX_CC_FAULT", "flood")
    log = NeuronxCompiler(options()).compile(adding).log
    assert log.count("o" * 1023) == log.count("e" * 1023) == 1024


def test_a_compiler_that_hangs(options: Make, adding: Program, runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NEURONX_CC_FAULT", "hang")
    compiler = NeuronxCompiler(options(compiler_timeout=5000))
    pids = tmp_path / "runs.pid"
    time_flies(lambda: pids.exists() and len(pids.read_text().split()) == 2, monkeypatch)
    with pytest.raises(CompilerError, match="the limit that option 'compiler_timeout' sets") as caught:
        compiler.compile(adding)
    assert caught.value.transient and not Path(runs()[0]["cwd"]).exists()
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_a_scratch_folder_that_is_not_there(options: Make, adding: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = NeuronxCompiler(options())
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(CompilerError, match="could not be run") as caught:
        compiler.compile(adding)
    assert caught.value.transient and "TMPDIR" in caught.value.remedy


def test_compiles_at_one_time(options: Make, adding: Program, runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot: the second compile waits for the first, and both have directories of their own."""
    compiler = NeuronxCompiler(options(compiler_jobs=1))
    second, running, seen, real = threading.Event(), [], [], process.run

    def run(*args: object) -> process.Finished:
        running.append(None)
        seen.append(len(running))
        if len(seen) == 1:
            second.wait(120)  # until the other one waits, or runs as well
        else:
            second.set()
        done = real(*args)  # type: ignore[arg-type]
        running.pop()
        return done

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(Progress, "wait", lambda self: second.set())
    threads = [threading.Thread(target=compiler.compile, args=(adding,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert seen == [1, 1]
    assert len({run["cwd"] for run in runs()}) == 2 and all(run["files"] == ["module.hlo.pb"] for run in runs())


def test_progress(options: Make, adding: Program, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("neuron_dynamo.compilers.neuronx.progress._QUIET", 3600.0)  # a busy machine may take the real two seconds
    NeuronxCompiler(options()).compile(adding)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr("neuron_dynamo.compilers.neuronx.progress._QUIET", 0.0)
    NeuronxCompiler(options()).compile(adding)
    shown = capfd.readouterr().err
    assert "neuron_dynamo: neuronx-cc 2.27.5334.0+f702b353, trn2: " in shown and ": done after " in shown
    monkeypatch.setenv("FAKE_NEURONX_CC_FAULT", "wordless")
    with pytest.raises(CompilerError):
        NeuronxCompiler(options()).compile(adding)
    assert ": failed after " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-1], "checksum"),
        (lambda data: data[:40] + b"\0" + data[41:], "corrupt"),
        (lambda data: b"NDNEFF1\n{}\n" + data, "header cannot be read"),
        (lambda data: b"something else", "does not begin as a Neuron artifact"),
        (lambda data: data[:-5] + bytes(5), "checksum"),
    ],
)
def test_damaged_artifacts(damage, says, options, adding):
    body = neff_writer.archive({"kelf-a.json": b"{}"})
    payload = NeuronArtifact(neff_writer.header(body, 2) + body, adding.stablehlo, "trn2", 2, "2.27").pack()
    compiler = NeuronxCompiler(options())
    compiler.load(payload, adding.signature)
    with pytest.raises(CompilerError, match=says):
        compiler.load(damage(payload), adding.signature)


@pytest.mark.parametrize("form", ["hlo", "stablehlo"])
def test_with_the_real_compiler(form: str, adding: Program) -> None:
    """Runs where the AWS Neuron SDK's neuronx-cc is on PATH."""
    path = shutil.which("neuronx-cc", path=REAL_PATH)
    if path is None:
        pytest.skip("the real neuronx-cc is not on PATH")
    compiler = NeuronxCompiler(Options.resolve({"target": "trn2", "compiler": path, "neuronx_cc_input": form}, environ={}))
    made = unpack(compiler.compile(adding).payload)
    assert made.version == dict(compiler.identity())["version"] and len(made.neff) > 1024
