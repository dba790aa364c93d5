"""What this machine has of all that neuron_dynamo needs, and what to do about the rest. Compiles nothing, changes nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from neuron_dynamo import names
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.compilers.neuronx.arguments import arguments
from neuron_dynamo.compilers.neuronx.find import NAME as NEURONX_CC
from neuron_dynamo.compilers.neuronx.find import find
from neuron_dynamo.compilers.neuronx.slots import jobs
from neuron_dynamo.errors import CompilerMissingError, OptionError
from neuron_dynamo.options import Options
from neuron_dynamo.runtime import nrt, nrt_api, nrtpy
from neuron_dynamo.version import __version__

BACKEND_NAMES = ("neuron", "neuron_dynamo")
MINIMUM_PYTHON = (3, 11)
REQUIRED = {"torch": "2.13", "torch-mlir": "20261001", "jaxlib": "0.10.2"}
"""Version, or its beginning, that each compiler package must have; a test compares this with pyproject.toml."""

_DISTRIBUTION = names.DISTRIBUTION
_MODULES = {"torch": "torch", "torch-mlir": "torch_mlir", "jaxlib": "jaxlib"}
_CPU_FEATURES = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "bf16")
_SDK_REMEDY = "install {} from the AWS Neuron SDK; target 'host' needs no SDK"


@dataclass(frozen=True)
class Check:
    """One thing looked at. `status` is `ok`, `note` (nothing that you asked for needs it) or `problem`; `remedy` says what to do."""

    name: str
    status: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All checks, for one target."""

    target: str
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        return all(check.status != "problem" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {"healthy": self.healthy, "target": self.target, "checks": [asdict(check) for check in self.checks]}


def diagnose(options: Mapping[str, Any] | None = None) -> Diagnosis:
    """Look at everything that compiling with `options` (those of `torch.compile`) needs. Raises OptionError for bad `options`."""
    try:
        resolved = Options.resolve(options)
        settings = Check("options", "ok", "environment variables are valid")
    except OptionError as error:
        resolved = Options.resolve(options, environ={})
        settings = Check("options", "problem", error.what, error.remedy)
    needs_sdk = not resolved.resolved_target.is_host
    checks = (
        _python(),
        Check("neuron_dynamo", "ok", f"{__version__} in {Path(__file__).parent}"),
        *(_package(name, version) for name, version in REQUIRED.items()),
        *(_backend(name) for name in BACKEND_NAMES),
        settings,
        _target(resolved),
        _cache(resolved),
        Check("cpu", "ok", f"{platform.machine()}, {os.cpu_count()} cores, {' '.join(cpu_features()) or 'no known vector features'}"),
        *_neuronx_cc(resolved, needs_sdk),
        *_torch_neuronx(),
        *_runtime(resolved, needs_sdk),
    )
    return Diagnosis(resolved.target, checks)


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Vector features of this machine that change what the host compiler emits; empty where the system does not tell."""
    with contextlib.suppress(OSError):
        line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
        present = set(line.group(1).split()) if line else set()
        return tuple(feature for feature in _CPU_FEATURES if feature in present)
    return ()


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < MINIMUM_PYTHON:
        return Check("python", "problem", found, f"use Python {'.'.join(map(str, MINIMUM_PYTHON))} or newer")
    return Check("python", "ok", found)


def _package(name: str, required: str) -> Check:
    if importlib.util.find_spec(_MODULES[name]) is None:
        return Check(name, "problem", "not installed", f"run 'pip install {_pin(name, required)}'")
    version = torch.__version__ if name == "torch" else _version(name) or "unknown"
    if version == required or version.startswith((f"{required}.", f"{required}+")):
        return Check(name, "ok", version)
    return Check(name, "problem", f"{version}, but {required} is needed", f"run 'pip install {_pin(name, required)}'")


def _pin(name: str, required: str) -> str:
    return f"{name}=={required}.*" if name == "torch" else f"{name}=={required}"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _backend(name: str) -> Check:
    label = f"backend {name!r}"
    # Of several entry points with one name, Dynamo takes the first.
    owners = names.owners(name)
    others = [owner for owner in owners if owner != _DISTRIBUTION]
    if len(others) == len(owners):
        found = f"registered by {', '.join(others)}" if others else "not registered"
        return Check(label, "problem", found, "install this package with pip: its entry points are read from its metadata")
    if not others and not (name == "neuron" and _version("torch-neuronx")):
        return Check(label, "ok", f"registered by {_DISTRIBUTION}")
    other = others[0] if others else "torch-neuronx"
    if others and owners[0] == other:
        return Check(label, "problem", f"registered by {other} first", f"use backend='neuron_dynamo', or uninstall {other}")
    return Check(label, "note", f"registered by {_DISTRIBUTION}; {other} claims it too", "backend='neuron_dynamo' is always this package")


def _target(options: Options) -> Check:
    target = options.resolved_target
    return Check("target", "ok", f"{target.name}, lnc {target.lnc}")


def _cache(options: Options) -> Check:
    path = options.cache_path
    if options.cache == "off":
        return Check("cache", "ok", "off")
    trouble = _not_writable(path)
    if trouble and options.cache == "on":
        return Check("cache", "problem", f"{path}: {trouble}", "set NEURON_DYNAMO_CACHE_DIR to a directory of yours")
    entries = sum(1 for _ in LocalStore(path).stored_keys())
    state = "not writable" if trouble else "writable" if path.is_dir() else "made at first use"
    return Check("cache", "ok", f"{path}: {entries} entries, {state}")


def _not_writable(path: Path) -> str:
    """Why no entry can be written below `path`, '' if one can."""
    existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    if not existing.is_dir():
        return f"{existing} is not a directory"
    if existing != path:
        return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is not writable"
    try:
        with tempfile.TemporaryFile(dir=path):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _neuronx_cc(options: Options, needed: bool) -> tuple[Check, ...]:
    """The compiler, and the command line that would be run."""
    try:
        found = find(options.compiler)
    except CompilerMissingError as error:
        return (Check(NEURONX_CC, "problem" if needed and options.emulate != "always" else "note", error.what, error.remedy),)
    compiler = Check(NEURONX_CC, "ok", f"{found.version} at {found.path}")
    if not needed:
        return (compiler,)
    try:
        line = shlex.join(("neuronx-cc", "compile", *arguments(options, found.release)))
    except OptionError as error:
        return compiler, Check("compiler arguments", "problem", error.what, error.remedy)
    limit = f"{options.compiler_timeout:g} s each" if options.compiler_timeout else "no time limit"
    return compiler, Check("compiler arguments", "ok", f"{line}; {jobs(options.compiler_jobs)} at once, {limit}")


def _torch_neuronx() -> tuple[Check, ...]:
    """AWS's own plugin, which shares a backend name and environment variables with this one."""
    version = _version("torch-neuronx")
    if version is None:
        return ()
    found = f"{version}, which takes the backend name 'neuron' when imported, and reads NEURON_CC_FLAGS too"
    return (Check("torch-neuronx", "note", found, "use backend='neuron_dynamo', or an environment without torch-neuronx"),)


def _without_device(options: Options) -> str:
    """What becomes of the programs of a Neuron target where there is no device to run them, "" if that is an error."""
    if options.emulate == "never":
        return ""
    try:
        find(options.compiler)
    except CompilerMissingError:
        return f"; programs for {options.target} are not compiled, and run on the host" if options.emulate == "always" else ""
    compiled = "compiled and cached" if options.cache in ("on", "refresh") else "compiled"
    return f"; programs for {options.target} are {compiled}, and run on the host"


def _runtime(options: Options, needed: bool) -> Iterator[Check]:
    """libnrt, the NeuronCores that it shows this process, and what machine it says this is. Takes no core."""
    status = "problem" if needed else "note"
    instead = _without_device(options) if needed else ""
    absent, to_run = ("note", "to run on a device, ") if instead else (status, "")
    path = nrt_api.find_library(options.libnrt)
    if path is None:
        remedy = _SDK_REMEDY.format("the Neuron runtime (libnrt)")
        if options.libnrt is None:
            yield Check("libnrt", absent, f"not found{instead}", f"{to_run}{remedy}")
        else:
            yield Check("libnrt", status, "not found", remedy)
        return
    try:
        cores = nrt_api.Nrt(path).count_vncs()
    except CompilerMissingError as error:
        yield Check("libnrt", status, f"{path}: {error.what}", error.remedy)
        return
    if not cores:
        remedy = "load the Neuron driver on a Neuron instance; NEURON_RT_VISIBLE_CORES may hide cores"
        yield Check("libnrt", absent, f"{path}, no Neuron device{instead}", f"{to_run}{remedy}")
        return
    yield Check("libnrt", "ok", f"{path}, {cores} logical NeuronCores")
    try:
        nrt.visible_cores()
    except ValueError as error:
        yield Check("cores", "problem", str(error), "name cores by their numbers, such as 0 or 0-3 or 0,2-3")
    machine = nrt.detect(options.libnrt)
    target = options.resolved_target
    if machine is None:
        yield Check("device", "note", "a machine that libnrt does not name", "set NEURON_PLATFORM_TARGET_OVERRIDE to its target")
    elif needed and (machine.target, machine.lnc) != (target.name, target.lnc):
        found = f"{machine.target}, lnc {machine.lnc}; graphs are compiled for {target.name}, lnc {target.lnc}"
        yield Check(
            "device", "problem", found, f"set options={{'target': '{machine.target}', 'lnc': {machine.lnc}}}, or NEURON_LOGICAL_NC_CONFIG"
        )
    else:
        yield Check("device", "ok", f"{machine.target}, lnc {machine.lnc} ({machine.source})")
    if options.runtime == "nrtpy":
        installed = nrtpy.available()
        yield Check(
            "nrtpy",
            "ok" if installed else "problem",
            "installed" if installed else "not installed",
            "" if installed else "install nrtpy, or use runtime='nrt'",
        )
