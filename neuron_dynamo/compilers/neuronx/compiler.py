"""NeuronxCompiler: Program -> NEFF by neuronx-cc, and NEFF -> Executable."""

from __future__ import annotations

import contextlib
import errno
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from neuron_dynamo.compiler_flags import canonical_flags
from neuron_dynamo.compilers.base import Compiled
from neuron_dynamo.compilers.neuronx import process
from neuron_dynamo.compilers.neuronx.arguments import arguments
from neuron_dynamo.compilers.neuronx.artifact import NeuronArtifact, neff_trouble, unpack
from neuron_dynamo.compilers.neuronx.emulation import EmulatedExecutable
from neuron_dynamo.compilers.neuronx.find import Found, find
from neuron_dynamo.compilers.neuronx.messages import LOG_HEADING, failure
from neuron_dynamo.compilers.neuronx.process import Finished
from neuron_dynamo.compilers.neuronx.progress import Progress
from neuron_dynamo.compilers.neuronx.slots import jobs, slot
from neuron_dynamo.dump import keep_failure
from neuron_dynamo.errors import CompilerError, CompilerMissingError
from neuron_dynamo.lowering.hlo import HloModule, bytecode, emit
from neuron_dynamo.lowering.program import Program, Signature
from neuron_dynamo.options import Options
from neuron_dynamo.preflight.refusal import refuse
from neuron_dynamo.runtime import device
from neuron_dynamo.runtime.base import Executable

COMMAND, HLO, STABLEHLO = "command.txt", "module.hlo.pb", "module.mlir"
"""Blobs of an artifact: the command line, and what the compiler read, under the names that it got."""
_LOG = "log-neuron-cc.txt"


class NeuronxCompiler:
    """Compiles Programs with neuronx-cc for `options.target`; fulfils compilers.base.Compiler. Thread-safe.

    Raises CompilerMissingError where there is no compiler, OptionError for compiler arguments that only we may set.
    """

    name = "neuronx-cc"

    def __init__(self, options: Options, found: Found | None = None) -> None:
        self._options, self._target = options, options.resolved_target
        self._found = found if found is not None else find(options.compiler)
        self._arguments = arguments(options, self._found.release)

    def identity(self) -> tuple[tuple[str, str], ...]:
        return (
            ("compiler", self.name),
            ("version", self._found.version),
            ("program", self._found.digest),
            ("arguments", canonical_flags(self._arguments)),
            ("input", self._options.neuronx_cc_input),
            ("custom_calls", str(self._options.custom_calls)),
        )

    def compile(self, program: Program) -> Compiled:
        """Raises PreflightError with all findings before the compiler starts, LoweringError, CompilerError for what it says."""
        refuse(program, self._target, self._found.release, self._arguments)
        custom_calls = self._options.custom_calls
        module = emit(program, custom_calls=custom_calls)
        as_hlo = self._options.neuronx_cc_input == "hlo"
        name, contents = (HLO, module.proto) if as_hlo else (STABLEHLO, bytecode(program, custom_calls=custom_calls))
        try:
            with tempfile.TemporaryDirectory(prefix="neuron_dynamo_", ignore_cleanup_errors=True) as scratch:
                folder = Path(scratch).resolve()
                (folder / name).write_bytes(contents)
                command = self._command(folder / name, folder / f"module_{program.digest[:16]}.neff")
                neff, log = self._run(command, folder, module)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free space in TMPDIR, or set it elsewhere" if full else "see that TMPDIR can be written and the compiler executed"
            raise CompilerError(f"neuronx-cc could not be run: {error}", remedy=remedy, transient=True) from error
        made = NeuronArtifact(neff, program.stablehlo, self._target.name, self._target.lnc, self._found.version)
        shown = shlex.join(["neuronx-cc", "compile", name, *self._arguments])
        return Compiled(made.pack(), log, {COMMAND: f"{shown}\n".encode(), name: contents})

    def _command(self, given: Path, neff: Path) -> list[str]:
        return [
            str(self._found.path),
            "compile",
            str(given),
            *self._arguments,
            "--output",
            str(neff),
            "--logfile",
            str(given.parent / _LOG),
        ]

    def _run(self, command: list[str], folder: Path, module: HloModule) -> tuple[bytes, str]:
        timeout = self._options.compiler_timeout
        label = f"{self.name} {self._found.version}, {self._target.name}"
        with Progress(label) as progress, self._kept_on_failure(command, folder):
            with slot(jobs(self._options.compiler_jobs), waiting=progress.wait):
                finished = process.run(command, folder, timeout, progress.update)
            log = _log(finished, folder)
            if finished.timed_out or finished.returncode:
                raise failure(finished, log, self._found.version, module, timeout)
            neff = Path(command[command.index("--output") + 1])
            data = neff.read_bytes() if neff.is_file() else b""
            trouble = neff_trouble(data) if neff.is_file() else "it is not there"
            if trouble:
                raise CompilerError(
                    f"{label} reported success, but its NEFF cannot be used: {trouble}",
                    remedy="see that the disk of TMPDIR is not full, and compile again; the compiler's output is this error's `log`",
                    transient=True,
                    log=log,
                )
        return data, log

    @contextlib.contextmanager
    def _kept_on_failure(self, command: list[str], folder: Path) -> Iterator[None]:
        """With `dump_dir`, what a failed compile read and said is kept there: it is in no cache entry."""
        try:
            yield
        except CompilerError as error:
            if self._options.dump_dir is not None:
                given = Path(command[2])
                shown = shlex.join(["neuronx-cc", "compile", given.name, *self._arguments])
                texts = {COMMAND: f"{shown}\n".encode(), given.name: given.read_bytes(), "log.txt": error.log.encode()}
                keep_failure(self._options, Path(command[command.index("--output") + 1]).stem, texts)
            raise

    def load(self, artifact: bytes, signature: Signature) -> Executable:
        made = unpack(artifact)
        if device.present(self._options):
            return device.load(made.neff, made.stablehlo, signature, self._options)
        if self._options.emulate == "never":
            raise CompilerMissingError(
                f"there is no Neuron device on this machine to run the program compiled for {made.target}",
                remedy="the artifact is in the cache; run on a Neuron instance, or leave option 'emulate' at its default",
            )
        what = f"no Neuron device: programs that neuronx-cc {made.version} compiled for {made.target} run on the host instead"
        return EmulatedExecutable(made.stablehlo, signature, what)


def _log(finished: Finished, folder: Path) -> str:
    """The streams, then what only the log file holds."""
    path = folder / _LOG
    written = path.read_text(errors="replace") if path.is_file() else ""
    return finished.output + (f"\n{LOG_HEADING}\n{written}" if written.strip() else "")
