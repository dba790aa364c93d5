"""The process's Neuron runtime: started once, closed at exit, never used in a forked child; and what it says of the machine.

Follows the order of the Neuron developer guide: init, load, allocate, execute, unload, close. Tested against a double of libnrt that
checks it; never run on a Neuron device.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from ctypes import byref, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_dynamo.errors import CompilerMissingError, ExecutionError, ForkError, NeffError
from neuron_dynamo.runtime.nrt_api import FRAMEWORK_PYTORCH, SUCCESS, Nrt, find_library

forked = False
"""True in a child that fork made after the runtime had started: the cores belong to the parent."""

_lock = threading.Lock()
_runtime: NrtRuntime | None = None

_PRODUCT_NAME = Path("/sys/devices/virtual/dmi/id/product_name")
_FAMILIES = {
    2: "trn1",
    3: "trn1",
    4: "inf2",
    5: "trn2",
    6: "trn2",
    7: "inf2",
    8: "trn2",
    9: "trn2",
    10: "trn2",
    11: "trn2",
    12: "trn2",
    13: "trn2",
    14: "trn3",
    15: "trn3",
}
"""Our target of each instance family of nrt.h; inf1 has no NeuronCore that neuronx-cc compiles for."""
_DEFAULT_LNC = {"trn1": 1, "inf2": 1, "trn2": 2, "trn3": 2}

# nrt_load's answers that are about the NEFF itself: to compile it again may help. NRT_INVALID, NRT_UNSUPPORTED_NEFF_VERSION.
_BAD_NEFF = (2, 10)


class NrtRuntime:
    """A started libnrt. Get it from `runtime`; executables hold it, so that it closes after the last of them."""

    def __init__(self, api: Nrt) -> None:
        self.api = api
        self.closed = False
        self.executables: weakref.WeakSet[Any] = weakref.WeakSet()
        status = api.nrt_init(FRAMEWORK_PYTORCH, b"2.0", b"1.0")
        if status != SUCCESS:
            raise ExecutionError(
                f"the Neuron runtime does not start: nrt_init returned {api.status_text(status)}",
                remedy="see whether another process holds the cores (neuron-ls), or give this one others by NEURON_RT_VISIBLE_CORES",
            )
        # Finalizers run in reverse order of their making at exit: after those of every executable.
        self._finalizer = weakref.finalize(self, _close, api, os.getpid())

    def check(self, status: int, what: str) -> None:
        """Raises ExecutionError with the runtime's own text where `what` did not succeed."""
        if status != SUCCESS:
            raise ExecutionError(f"{what}: the Neuron runtime returned {self.api.status_text(status)}")

    def load(self, neff: bytes, core: int, collectives: tuple[int, int] | None) -> c_void_p:
        """A handle of the loaded NEFF on logical core `core` (counted among the visible ones).

        `collectives` is (rank, world size) for a program with collective operations. Raises NeffError where the runtime
        refuses the file, ExecutionError where it lacks something else.
        """
        model = c_void_p()
        if collectives is None:
            status = self.api.nrt_load(neff, len(neff), core, -1, byref(model))
        else:
            status = self.api.nrt_load_collectives(neff, len(neff), core, -1, *collectives, byref(model))
        if status in _BAD_NEFF:
            raise NeffError(
                f"the Neuron runtime refuses the NEFF: nrt_load returned {self.api.status_text(status)}",
                remedy="compile again with a neuronx-cc of the same SDK as libnrt; NEURON_RT_LOG_LEVEL=INFO tells more",
            )
        self.check(status, f"loading a NEFF of {len(neff)} bytes on core {core}")
        return model

    def lnc(self) -> int | None:
        """Physical cores of each logical core, None where neither the environment nor the library tells."""
        info = self.api.instance_info()
        return expected_lnc() or (_DEFAULT_LNC.get(_FAMILIES.get(info.family, "")) if info is not None else None)

    def close(self) -> None:
        """Unload every executable and close the runtime, as exit does."""
        for executable in list(self.executables):
            executable.release()
        self.closed = True
        self._finalizer()


def _close(api: Nrt, process: int) -> None:
    if os.getpid() == process:
        api.nrt_close()


def runtime(library: str | None = None) -> NrtRuntime:
    """The process's runtime, started by the first call.

    `library` is the path of libnrt, by default looked up. Raises CompilerMissingError where there is none, ExecutionError where it does
    not start or was closed, ForkError in a child of a process that had started it.
    """
    global _runtime
    if forked:
        raise_forked()
    with _lock:
        if _runtime is None:
            _runtime = NrtRuntime(Nrt(_require(library)))
        elif library is not None and library != _runtime.api.path:
            raise ExecutionError(
                f"the Neuron runtime of {_runtime.api.path} has started in this process, and {library} was asked for",
                remedy="one process has one libnrt: set option 'libnrt' once",
            )
        elif _runtime.closed:
            raise ExecutionError("the Neuron runtime was closed in this process", remedy="start a new process")
        return _runtime


def raise_forked() -> None:
    """Raises the ForkError of a child process that inherited the runtime."""
    raise ForkError(
        "this process was forked after the Neuron runtime had started, and the cores belong to its parent",
        remedy="start workers with the 'spawn' or 'forkserver' method, or fork before the first compiled call; a core serves one process",
    )


def _after_fork_in_child() -> None:
    global forked, _lock
    _lock = threading.Lock()
    if _runtime is not None:
        forked = True


os.register_at_fork(after_in_child=_after_fork_in_child)


def _require(library: str | None) -> str:
    path = find_library(library)
    if path is None:
        where = library or "LD_LIBRARY_PATH or /opt/aws/neuron/lib"
        raise CompilerMissingError(
            f"libnrt, the Neuron runtime, is not in {where}",
            remedy="install aws-neuronx-runtime-lib on a Neuron instance, or use target 'host'",
        )
    return path


# What the machine has


def device_count(library: str | None = None) -> int:
    """Logical cores that this process may use; 0 without libnrt or without devices. Starts nothing."""
    api = _api(library)
    return api.count_vncs() if api is not None else 0


@dataclass(frozen=True)
class Machine:
    """A Neuron machine: our target for it, its logical-core configuration, and who said so."""

    target: str
    lnc: int
    source: str


def detect(library: str | None = None, environ: Mapping[str, str] | None = None, product_name: Path = _PRODUCT_NAME) -> Machine | None:
    """The target and LNC of this machine, None where it is no Neuron machine.

    Asks NEURON_PLATFORM_TARGET_OVERRIDE, then libnrt, then the machine's product name; the LNC is NEURON_LOGICAL_NC_CONFIG (once
    NEURON_RT_VIRTUAL_CORE_SIZE), else the target's default. Starts nothing.
    """
    environ = os.environ if environ is None else environ
    override = environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "")
    if (target := _target(override)) is not None:
        return Machine(target, _lnc(target, environ), "NEURON_PLATFORM_TARGET_OVERRIDE")
    api = _api(library)
    info = api.instance_info() if api is not None else None
    if info is not None and info.family in _FAMILIES:
        target = _FAMILIES[info.family]
        return Machine(target, _lnc(target, environ), "libnrt")
    try:
        name = product_name.read_text()
    except OSError:
        return None
    target = _target(name.partition(".")[0])
    return Machine(target, _lnc(target, environ), "product name") if target is not None else None


def expected_lnc(environ: Mapping[str, str] | None = None) -> int | None:
    """The LNC that the environment sets for the runtime, None where it sets none."""
    environ = os.environ if environ is None else environ
    for variable in ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"):
        if environ.get(variable, "").strip() in ("1", "2"):
            return int(environ[variable])
    return None


def visible_cores(environ: Mapping[str, str] | None = None) -> tuple[int, ...] | None:
    """The cores that NEURON_RT_VISIBLE_CORES names ("0", "0-3", "0,2-3"), None where it is not set. Raises ValueError for nonsense."""
    environ = os.environ if environ is None else environ
    text = environ.get("NEURON_RT_VISIBLE_CORES", "").strip()
    if not text:
        return None
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ValueError(f"NEURON_RT_VISIBLE_CORES is {text!r}")
        cores.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(cores)


def _target(name: str) -> str | None:
    """trn2u -> trn2, inf2 -> inf2; None for what is none of ours."""
    return next((target for target in _DEFAULT_LNC if name.strip().lower().startswith(target)), None)


def _lnc(target: str, environ: Mapping[str, str]) -> int:
    return expected_lnc(environ) or _DEFAULT_LNC[target]


def _api(library: str | None) -> Nrt | None:
    if _runtime is not None and not forked and library in (None, _runtime.api.path):
        return _runtime.api
    path = find_library(library)
    if path is None:
        return None
    try:
        return Nrt(path)
    except CompilerMissingError:
        return None
