"""The libnrt double (libnrt.c), built with this machine's C compiler, and what runs its programs: the host target.

It is no Neuron runtime: it proves that we call the published functions in the published order with the right names, sizes and
lifetimes, and that our numbers survive the way through it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from neuron_dynamo import xla
from neuron_dynamo.compilers.neuronx.emulation import host_form
from neuron_dynamo.lowering.hlo import schema
from neuron_dynamo.lowering.program import STABLEHLO_VERSION, Signature, TensorSpec
from neuron_dynamo.runtime import nrt, residency
from neuron_dynamo.runtime.host import HostExecutable

SOURCE = Path(__file__).with_name("libnrt.c")
_LOADER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_EXECUTOR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p))
_DTYPES = {1: "uint64", 2: "int8", 3: "uint8", 4: "int16", 5: "uint16", 6: "bfloat16", 7: "float16"}
_DTYPES |= {8: "int32", 9: "uint32", 10: "float32", 12: "int64"}


@functools.cache
def c_compiler() -> str | None:
    """The C compiler of this machine, None if it has none: then there is no double, and its tests are skipped."""
    return next((path for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (path := shutil.which(name))), None)


@functools.cache
def build() -> Path:
    """The shared library, compiled once a process into a folder that goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="libnrt-double-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "libnrt.so.1"
    compiler = c_compiler()
    assert compiler is not None
    # A test may have emptied PATH, by which the compiler finds its assembler and linker.
    environ = {**os.environ, "PATH": os.pathsep.join((os.path.dirname(compiler), os.environ.get("PATH", ""), os.defpath))}
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE), "-lpthread"], env=environ, check=True)
    return path


class Double:
    """Steers the double and runs its programs. `path` is what the code under test loads; one a process."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = library = ctypes.CDLL(self.path)
        for name in ("violations", "live_models", "live_tensors", "live_sets", "live_infos", "calls"):
            getattr(library, f"double_{name}").restype = ctypes.c_long
        for name in ("device_bytes", "bytes_written"):
            getattr(library, f"double_{name}").restype = ctypes.c_size_t
        library.double_last_violation.restype = ctypes.c_char_p
        library.double_calls.argtypes = [ctypes.c_char_p]
        library.double_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        library.double_declare.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32]
        self.programs: dict[int, LoadedProgram] = {}
        self.errors: list[BaseException] = []
        self._callbacks = (_LOADER(self._load), _EXECUTOR(self._execute))
        library.double_set_callbacks(*self._callbacks)

    def reset(self) -> None:
        """As in a new process: nothing started, nothing counted, no faults."""
        self._library.double_reset()
        self.compute(True)
        self.programs.clear()
        self.errors.clear()

    def configure(self, *, cores: int = 2, family: int = 5) -> None:
        self._library.double_configure(cores, family)

    def compute(self, really: bool) -> None:
        """Whether nrt_execute runs the programs, or leaves its outputs as they are."""
        self._library.double_set_callbacks(self._callbacks[0], self._callbacks[1] if really else _EXECUTOR())

    def fail(self, function: str, status: int, *, after: int = 0, times: int = 1) -> None:
        """The next `times` calls of `function`, after `after` good ones, return `status`."""
        self._library.double_fail(function.encode(), status, after, times)

    def calls(self, function: str) -> int:
        return int(self._library.double_calls(function.encode()))

    @property
    def bytes_written(self) -> int:
        return int(self._library.double_bytes_written())

    @property
    def device_bytes(self) -> int:
        return int(self._library.double_device_bytes())

    def live(self) -> dict[str, int]:
        """Models, tensors, sets and tensor lists that were not given back."""
        return {name: int(getattr(self._library, f"double_live_{name}")()) for name in ("models", "tensors", "sets", "infos")}

    def violations(self) -> str:
        """'' where the contract was kept, else how often not, and the last time."""
        count = self._library.double_violations()
        if self.errors:
            return f"the double itself failed: {self.errors[-1]!r}"
        return f"{count}: {self._library.double_last_violation().decode()}" if count else ""

    def _load(self, model: int, address: int, size: int) -> int:
        try:
            loaded = LoadedProgram(ctypes.string_at(address, size))
            for tensor in loaded.tensors["inputs"] + loaded.tensors["outputs"]:
                shape = (ctypes.c_uint32 * len(tensor["shape"]))(*tensor["shape"])
                usage = 0 if tensor["usage"] == "input" else 1
                name = tensor["name"].encode()
                self._library.double_declare(name, usage, tensor["size"], tensor["dtype"], ctypes.addressof(shape), len(shape))
            for output, argument in loaded.tensors["aliases"]:
                self._library.double_declare_alias(output, argument)
            if loaded.collectives:
                self._library.double_declare_collectives()
        except (OSError, EOFError, KeyError, ValueError, tarfile.TarError):
            return 2
        except BaseException as error:  # none may pass into C
            self.errors.append(error)
            return 1
        self.programs[model] = loaded
        return 0

    def _execute(self, model: int, inputs: Any, outputs: Any) -> int:
        try:
            return self.programs[model].run(inputs, outputs)
        except BaseException as error:
            self.errors.append(error)
            return 1


class LoadedProgram:
    """The program of one NEFF. The host compiles it at its first run."""

    def __init__(self, neff: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(neff[1024:])) as archive:
            files = {member.name: archive.extractfile(member) for member in archive}
            self.files = {name: file.read() for name, file in files.items() if file is not None}
        self.tensors = json.loads(self.files["tensors.json"])
        self.collectives = "collectives" in self.files
        self._executable: HostExecutable | None = None

    def run(self, inputs: Any, outputs: Any) -> int:
        if self._executable is None:
            self._executable = self._compile()
        given = [_tensor(inputs[i], spec) for i, spec in enumerate(self._executable.signature.inputs)]
        results = self._executable(given)
        for i, result in enumerate(results):
            ctypes.memmove(outputs[i], result.data_ptr(), result.numel() * result.element_size())
        nan = any(bool(result.isnan().any()) for result in results if result.is_floating_point() and result.element_size() > 1)
        return 1003 if nan else 0

    def _compile(self) -> HostExecutable:
        executable = xla.compile(host_form(self._stablehlo()))
        types = _entry_types(executable)
        specs = [
            [TensorSpec(tuple(tensor["shape"]), dtype) for tensor, dtype in zip(self.tensors[usage], dtypes, strict=True)]
            for usage, dtypes in zip(("inputs", "outputs"), types, strict=True)
        ]
        return HostExecutable(executable, Signature(tuple(specs[0]), tuple(specs[1])), xla.donated_parameters(executable))

    def _stablehlo(self) -> bytes:
        if "program.mlir" in self.files:
            return self.files["program.mlir"]
        hlo: Any = importlib.import_module("jaxlib._hlo")
        jax: Any = importlib.import_module("jaxlib._jax")
        text = jax.mlir.xla_computation_to_mlir_module(hlo.XlaComputation(_without_root_copy(self.files["program.hlo.pb"])))
        from torch_mlir._mlir_libs import _stablehlo

        data: bytes = _stablehlo.serialize_portable_artifact_str(text, STABLEHLO_VERSION)
        return data


def _without_root_copy(proto: bytes) -> bytes:
    """The program with the parameter itself for its result where that is a copy of one: StableHLO has no copies."""
    module = schema.parse(proto)
    (entry,) = [computation for computation in module.computations if computation.id == module.entry_computation_id]
    (root,) = [instruction for instruction in entry.instructions if instruction.id == entry.root_id]
    if root.opcode != "copy":
        return proto
    (entry.root_id,) = root.operand_ids
    entry.instructions.remove(root)
    return schema.serialize(module)


def _tensor(address: int | None, spec: TensorSpec) -> torch.Tensor:
    """The memory at `address` as a tensor, not a copy."""
    size = spec.dtype.itemsize
    for dim in spec.shape:
        size *= dim
    if not size:
        return torch.empty(spec.shape, dtype=spec.dtype)
    memory = (ctypes.c_char * size).from_address(address or 0)
    return torch.frombuffer(memory, dtype=spec.dtype).view(spec.shape)


_XLA_TYPES = {
    "pred": torch.bool,
    "s8": torch.int8,
    "s16": torch.int16,
    "s32": torch.int32,
    "s64": torch.int64,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}


def _entry_types(executable: Any) -> tuple[list[torch.dtype], list[torch.dtype]]:
    """The types of the program's own inputs and outputs: NRT's do not tell a boolean from a byte."""
    layout = xla.optimized_hlo_text(executable).partition("entry_computation_layout={")[2].partition("\n")[0]
    inputs, _, outputs = layout.partition("->")
    return _types(inputs), _types(outputs)


def _types(text: str) -> list[torch.dtype]:
    import re

    return [_XLA_TYPES[name] for name in re.findall(r"([a-z]+\d*(?:e\d+m\d+(?:fn)?)?)\[", text)]


@contextlib.contextmanager
def as_in_a_new_process() -> Iterator[Double]:
    """The double with nothing started; at the end the runtime is closed, nothing may be live, and the contract must have been kept."""
    lib = double()
    lib.reset()
    residency._copies = weakref.WeakValueDictionary()  # those of executables that another test's models still hold
    yield lib
    if nrt._runtime is not None:
        nrt._runtime.close()
        nrt._runtime = None
    assert lib.live() == {"models": 0, "tensors": 0, "sets": 0, "infos": 0}
    assert lib.device_bytes == 0
    assert lib.violations() == ""


@functools.cache
def double() -> Double:
    """The process's double."""
    return Double(build())
