"""Which neuronx-cc this machine has: the real compiler, the package index's placeholder, or none."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from neuron_dynamo.errors import CompilerMissingError

NAME = "neuronx-cc"
REMEDY = f"install {NAME} from the AWS Neuron SDK; target 'host' needs no SDK"
PLACEHOLDER_REMEDY = f"uninstall it, then {REMEDY}"
_VERSION = re.compile(r"NeuronX Compiler version ([\w.+-]+)")
_INTERPRETER = re.compile(rb"\A#!(?:/bin/sh\n'''exec'[^\n]*\n' '''|[^\n]*python[^\n]*)\n")
"""The lines in which pip writes where this environment's Python is (the long form is that for long paths): no part of the compiler."""
_TIMEOUT = 120


@dataclass(frozen=True)
class Found:
    """A neuronx-cc that told its version, e.g. "2.27.5334.0+f702b353"; `digest` are 16 hex digits over the program's file
    without the line that names its interpreter, so that two environments have one cache."""

    path: Path
    version: str
    digest: str

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version; (0, 0) where the version has another form."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)


def find(given: str | None = None) -> Found:
    """The compiler at the path (or of the name) `given`, else of PATH. Raises CompilerMissingError, which says what is there instead.

    Its version is asked for once for each state of the file (path, size, modification time) in this process.
    """
    program = shutil.which(str(Path(given).expanduser()) if given else NAME)
    if program is None:
        if given:
            raise CompilerMissingError(f"there is no program {given!r}, which option 'compiler' names", remedy=REMEDY)
        if placeholder():
            raise CompilerMissingError(f"{NAME} is the package index's placeholder, which holds no compiler", remedy=PLACEHOLDER_REMEDY)
        raise CompilerMissingError(f"{NAME} is not on PATH", remedy=REMEDY)
    path = Path(program).absolute()
    try:
        status = path.stat()
    except OSError as error:
        raise CompilerMissingError(f"{path} cannot be read: {error}", remedy=REMEDY) from error
    return _ask(path, status.st_mtime_ns, status.st_size)


def placeholder() -> bool:
    """Whether the package that the public index has under the compiler's name is installed, which holds no module of the compiler."""
    try:
        importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return False
    return importlib.util.find_spec("neuronxcc") is None


@lru_cache(maxsize=16)
def _ask(path: Path, modified: int, size: int) -> Found:
    try:
        with tempfile.TemporaryDirectory(prefix="neuron_dynamo_") as scratch:  # it leaves log files in its working directory
            done = subprocess.run(
                [path, "--version"],
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # releases differ in the stream that they use
                text=True,
                errors="replace",
                timeout=_TIMEOUT,
                check=False,
            )
        digest = hashlib.sha256(_INTERPRETER.sub(b"", path.read_bytes(), count=1)).hexdigest()[:16]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerMissingError(f"{path} does not run: {error}", remedy=REMEDY) from error
    version = _VERSION.search(done.stdout)
    if done.returncode or version is None:
        if "WRONG PACKAGE" in done.stdout:
            raise CompilerMissingError(f"{path} is a placeholder, which holds no compiler", remedy=PLACEHOLDER_REMEDY)
        said = done.stdout.strip()[:200]
        told = f"; it says {said!r}" if said else ""
        raise CompilerMissingError(f"{path} does not tell its version (exit code {done.returncode}){told}", remedy=REMEDY)
    return Found(path, version[1], digest)
