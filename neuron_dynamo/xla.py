"""The one wrapper of jaxlib: XLA's CPU client, compiler, serialisation, buffers and HLO conversion, without the `jax` package.

All of jaxlib that we touch is private (`jaxlib._jax`), so it is pinned, stays behind this module, and tests/test_xla.py
checks every behaviour that we rely on.

Numerics of what `compile` makes: fast-math is off, NaN and Inf are honoured, no algebra but that of IEEE is done, every bf16/f16
op rounds as eager does, f32 multiply-add pairs may contract to FMA, sums may be taken in any order, and **denormals flush to
zero** (XLA's CPU runtime always does so inside an executable; the calling thread's own flush mode is untouched).
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import platform
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from neuron_dynamo.errors import CompilerError, ForkError

OVERRIDES: tuple[tuple[str, bool | int | str], ...] = (
    # Else XLA may drop a bf16 -> f32 -> bf16 rounding that the program asks for.
    ("xla_allow_excess_precision", False),
    # The MLIR fusion emitters compile up to twice as long and make code of the same speed and results.
    ("xla_cpu_use_fusion_emitters", False),
    # XLA's algebraic simplifier takes floats for real numbers: log(x**5) as 5 log|x|, (x + c) - c as x, mask * NaN as 0, x * c1 * c2 as
    # x * (c1 c2), which may underflow. Models run as fast without it, to a few percent.
    ("xla_disable_hlo_passes", "algsimp"),
)
"""XLA flags that every compile sets; they change code, so they are part of the compiler's identity."""

ALIGNMENT = 64
"""Bytes. XLA imports host memory without a copy only at this alignment."""

Buffer = Any
"""An XLA device array (`jaxlib._jax.ArrayImpl`)."""

LoadedExecutable = Any
"""A compiled program (`jaxlib._jax.LoadedExecutable`)."""

forked = False
"""True in a child that fork made after the client existed: its thread pools are gone, so using it would hang."""

_lock = threading.Lock()
_client: _Client | None = None
_client_started = False


class _Client:
    """The process's XLA CPU client and the jaxlib objects that every call needs."""

    def __init__(self) -> None:
        with _quiet_import():
            jax: Any = importlib.import_module("jaxlib._jax")
            xla_client: Any = importlib.import_module("jaxlib.xla_client")
            # Asynchronous dispatch could still read an input after the call returned.
            self.client = xla_client.make_cpu_client(asynchronous=False)
        if "jax" not in sys.modules:
            # Else every array and executable refers to the code of the whole Python stack, which keeps what Dynamo compiled alive.
            jax.set_tracebacks_enabled(False)
        self.jax = jax
        self.device = self.client.local_devices()[0]
        self.devices = [self.device]
        self.device_list = jax.DeviceList((self.device,))

        class Sharding(jax.SingleDeviceSharding):  # type: ignore[misc]
            """Answers here what jaxlib would otherwise look up in the absent `jax` package, 47 us for every buffer."""

            memory_kind = None

            def _to_xla_hlo_sharding(self, ndim: int) -> Any:
                return xla_client.HloSharding.replicate()

        self.sharding = Sharding(self.device)
        import numpy

        # A handler that never looks at the result's shape or dtype serves every output.
        self.result_handler = jax.array_result_handler(_Aval((), numpy.dtype("f4")), self.sharding, True, True)


class _Aval:
    """What jaxlib asks of an abstract value."""

    __slots__ = ("dtype", "ndim", "shape", "size", "weak_type")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype, self.weak_type, self.ndim = shape, dtype, False, len(shape)
        self.size = _size(shape)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size


@contextmanager
def _quiet_import() -> Iterator[None]:
    """Hides the INFO lines that the client prints on stderr, unless the user chose a level or loaded jaxlib first."""
    name = "TF_CPP_MIN_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _get_client() -> _Client:
    global _client, _client_started
    if forked:
        raise_forked()
    if _client is None:
        with _lock:
            if _client is None:
                _client_started = True
                _client = _Client()
    return _client


def raise_forked() -> None:
    """Raises the ForkError of a child process that inherited the client."""
    raise ForkError(
        "this process was forked after the XLA client had started, and XLA's threads did not survive the fork",
        remedy="start workers with the 'spawn' or 'forkserver' method, or fork before the first compiled call and compile in the child",
    )


def _after_fork_in_child() -> None:
    global forked, _lock
    _lock = threading.Lock()
    if _client_started:
        forked = True
        if _client is not None:
            # Destroying the inherited client at exit would join threads that do not exist.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_client))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_client.client))


os.register_at_fork(after_in_child=_after_fork_in_child)


def client_exists() -> bool:
    """Whether this process has started the XLA client."""
    return _client is not None


# Compiling


def _compile_options(client: _Client) -> Any:
    options = client.jax.CompileOptions()
    options.env_option_overrides = list(OVERRIDES)
    return options


_OF_THE_MOMENT = ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED", "UNAVAILABLE", "ABORTED")
"""Status codes of XLA that say nothing about the program."""


def _is_of_the_moment(error: Exception) -> bool:
    return isinstance(error, MemoryError) or str(error).startswith(_OF_THE_MOMENT)


def compile(stablehlo: bytes) -> LoadedExecutable:
    """Compiles a StableHLO portable artifact (or MLIR text as bytes) for this CPU. Raises CompilerError, ForkError."""
    client = _get_client()
    try:
        return client.client.compile_and_load(stablehlo, client.device_list, _compile_options(client))
    except Exception as error:
        raise CompilerError(f"XLA refused the program: {error}", transient=_is_of_the_moment(error)) from error


def serialize(executable: LoadedExecutable) -> bytes:
    """The executable's machine code and metadata; not deterministic from one compile to the next."""
    client = _get_client()
    try:
        data: bytes = client.client.serialize_executable(executable)
    except Exception as error:
        raise CompilerError(f"XLA could not serialise the executable: {error}", transient=_is_of_the_moment(error)) from error
    return data


def deserialize(data: bytes) -> LoadedExecutable:
    """The inverse of `serialize`. It maps machine code: give it only bytes whose origin and CPU were checked.

    Raises CompilerError for bytes that XLA does not recognise, ForkError.
    """
    client = _get_client()
    try:
        return client.client.deserialize_executable(data, client.device_list, None)
    except Exception as error:
        raise CompilerError(f"XLA could not load the executable: {error}") from error


def optimized_hlo_text(executable: LoadedExecutable) -> str:
    """HLO module text after XLA's own passes."""
    text: str = executable.hlo_modules()[0].to_string()
    return text


_ALIASED_PARAMETER = re.compile(r"\{[\d, ]*\}: \((\d+), \{")
_DONATED_PARAMETER = re.compile(r"\((\d+), \{[\d, ]*\}\)")


def donated_parameters(executable: LoadedExecutable) -> tuple[int, ...]:
    """Parameters that the program aliases to an output or donates: XLA takes their buffers away when it runs."""
    header = optimized_hlo_text(executable).partition("\n")[0]
    before_layout = header.partition("entry_computation_layout=")[0]
    found = _ALIASED_PARAMETER.findall(before_layout)
    found += _DONATED_PARAMETER.findall(before_layout.partition("buffer_donor=")[2])
    return tuple(sorted({int(index) for index in found}))


# HLO from StableHLO


def _computation(stablehlo: bytes) -> Any:
    with _quiet_import():
        jax: Any = importlib.import_module("jaxlib._jax")
    try:
        return jax.mlir.mlir_module_to_xla_computation(stablehlo)
    except Exception as error:
        raise CompilerError(f"XLA could not turn the StableHLO into HLO: {error}") from error


def hlo_text(stablehlo: bytes) -> str:
    """HLO module text, before any XLA pass, of a StableHLO portable artifact. Raises CompilerError."""
    text: str = _computation(stablehlo).as_hlo_text()
    return text


def hlo_proto(stablehlo: bytes) -> bytes:
    """Serialised HloModuleProto, before any XLA pass, of a StableHLO portable artifact. Raises CompilerError."""
    proto: bytes = _computation(stablehlo).as_serialized_hlo_module_proto()
    return proto


def check_hlo(proto: bytes) -> None:
    """Raises CompilerError unless XLA reads a serialised HloModuleProto as a module."""
    with _quiet_import():
        hlo: Any = importlib.import_module("jaxlib._hlo")
    try:
        hlo.HloModule.from_serialized_hlo_module_proto(proto)
    except Exception as error:
        raise CompilerError(f"XLA does not take the HLO module: {error}") from error


def stablehlo_of_hlo(proto: bytes) -> bytes:
    """StableHLO (MLIR bytecode, which `compile` takes) of a serialised HloModuleProto. Raises CompilerError."""
    with _quiet_import():
        jax: Any = importlib.import_module("jaxlib._jax")
    try:
        stablehlo: bytes = jax.mlir.hlo_to_stablehlo(proto)
    except Exception as error:
        raise CompilerError(f"XLA could not turn the HLO into StableHLO: {error}") from error
    return stablehlo


# Running


def numpy_dtype(name: str) -> Any:
    """The numpy dtype (ml_dtypes for bf16 and fp8) of a name in `lowering.program.DTYPE_NAMES`."""
    import ml_dtypes
    import numpy

    return numpy.dtype(getattr(ml_dtypes, name, name))


class Importer:
    """Makes XLA buffers of one shape (elements, row-major) and dtype (a DTYPE_NAMES name) from raw CPU addresses."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        import numpy

        client = _get_client()
        self._shape, self._dtype = shape, numpy_dtype(dtype)
        self._aval = _Aval(shape, self._dtype)
        self._ctype = ctypes.c_char * (self._aval.size * self._dtype.itemsize)
        self._ndarray = numpy.ndarray
        self._put = client.jax.batched_device_put
        self._sharding, self._devices = client.sharding, client.devices
        self._view_semantics = client.jax.HostBufferSemantics.ZERO_COPY
        self._copy_semantics = client.jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL

    def view(self, address: int) -> Buffer:
        """A buffer over `address` (64-byte aligned) that neither copies nor owns it: use it only while the memory lives."""
        array = self._ndarray(self._shape, self._dtype, self._ctype.from_address(address))
        return self._put(self._aval, self._sharding, [array], self._devices, True, False, self._view_semantics, True)

    @staticmethod
    def is_view(buffer: Buffer, address: int) -> bool:
        """Whether XLA took the memory at `address` as it is for `buffer`, and not silently a copy of it."""
        return bool(buffer.unsafe_buffer_pointer() == address)

    def copy(self, address: int) -> Buffer:
        """An XLA-owned copy, complete on return, of the dense memory at `address` (any alignment)."""
        array = self._ndarray(self._shape, self._dtype, self._ctype.from_address(address))
        return self._put(self._aval, self._sharding, [array], self._devices, True, True, self._copy_semantics, True)

    def empty(self) -> Buffer:
        """A buffer for a shape of no elements."""
        array = self._ndarray(self._shape, self._dtype)
        return self._put(self._aval, self._sharding, [array], self._devices, True, True, self._copy_semantics, True)


def caller(executable: LoadedExecutable, outputs: int) -> Callable[[Sequence[Buffer]], list[Any]]:
    """A function that runs `executable` on buffers and returns its `outputs` results as DLPack capsules (XLA-owned memory).

    It blocks until the results are ready and releases the GIL meanwhile.
    """
    client = _get_client()
    execute = executable.execute_sharded
    handlers = [client.result_handler] * outputs
    to_dlpack = client.jax.buffer_to_dlpack_managed_tensor

    def call(buffers: Sequence[Buffer]) -> list[Any]:
        return [to_dlpack(result, None) for result in execute(buffers).consume_with_handlers(handlers)]

    return call


# Versions and the machine


@cache
def jaxlib_version() -> str:
    return version("jaxlib")


@cache
def stablehlo_version() -> str:
    """Version of the StableHLO inside jaxlib, e.g. '1.17.0': the newest portable artifact that it reads."""
    dialect: Any = importlib.import_module("jaxlib.mlir.dialects.stablehlo")
    current: str = dialect.get_current_version()
    return current


@dataclass(frozen=True)
class CpuFeatures:
    """`name` is vendor-family-model (or the architecture), `flags` the sorted instruction-set extensions."""

    name: str
    flags: tuple[str, ...]

    @property
    def digest(self) -> str:
        """12 hex digits, equal on machines that run each other's executables."""
        return hashlib.sha256(" ".join((self.name, *self.flags)).encode()).hexdigest()[:12]


# Extensions that a code generator selects instructions by; the kernel's other flags differ between kernels, not CPUs.
_ISA_FLAG = re.compile(
    r"(sse|ssse|pni|avx|amx|fma|f16c|bmi|abm|lzcnt|adx|v?aes|v?pclmul|sha|sm[34]|gfni|popcnt|movbe|movdir|cmov|cx\d|fxsr|xsave|rdrand|rdseed|"
    r"fsgsbase|clflushopt|clwb|clzero|cldemote|prefetchw|3dnowprefetch|invpcid|lahf_lm|pku|ospke|ptwrite|rdpid|rdpru|rtm|serialize|tbm|uintr|"
    r"user_shstk|waitpkg|wbnoinvd|xop|enqcmd|hreset|asimd|sve|sme|i8mm|bf16|fphp|fp$|atomics|crc32|lrcpc|dcpop|fcma|jscvt|dit|flagm|ssbs|pmull)"
)


@cache
def cpu_features() -> CpuFeatures:
    """What this machine's CPU can run, from /proc/cpuinfo; where there is none, only its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return CpuFeatures("-".join(filter(None, (platform.system(), platform.machine(), platform.processor()))), ())
    return parse_cpuinfo(text, platform.machine())


def parse_cpuinfo(text: str, machine: str) -> CpuFeatures:
    """CpuFeatures of the first processor in the text of /proc/cpuinfo on a machine of architecture `machine`."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    vendor, model = fields.get("vendor_id") or fields.get("cpu implementer"), fields.get("model") or fields.get("cpu part")
    name = "-".join([machine, *filter(None, (vendor, fields.get("cpu family"), model))])
    flags = (fields.get("flags") or fields.get("features") or "").split()
    return CpuFeatures(name, tuple(sorted(flag for flag in set(flags) if _ISA_FLAG.match(flag))))


def code_flags() -> str:
    """All XLA flags that may change code, canonical: ours and those of the environment's XLA_FLAGS, which XLA reads itself.

    Sorted by name; those of one name keep their order, for some accumulate. Flags that only dump are left out. XLA_FLAGS may also
    name a file of flags, which counts with its content.
    """
    ours = [f"--{name}={str(value).lower()}" for name, value in OVERRIDES]
    given = os.environ.get("XLA_FLAGS", "")
    try:
        theirs = shlex.split(given if given.lstrip().startswith("-") or not given.strip() else Path(given.strip()).read_text())
    except (ValueError, OSError):
        theirs = [given]
    theirs = [flag for flag in theirs if not flag.startswith("--xla_dump_")]
    return shlex.join([*sorted(ours), *sorted(theirs, key=lambda flag: flag.partition("=")[0])])
