"""NrtpyExecutable: a NEFF run by nrtpy, the vendor's Python binding of libnrt, where that is installed.

Follows the pages "nrtpy model API" and "nrtpy tensor API" of the AWS Neuron documentation (SDK 2.32). Tested against a module of that
interface; never run with the real one. It copies through NumPy and sends every input on every call: runtime/nrt_executable.py does neither.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import tempfile
import threading
import weakref
from math import prod
from pathlib import Path
from typing import Any

import torch

from neuron_dynamo import neff as neff_file
from neuron_dynamo.errors import CompilerMissingError, ExecutionError, NeffError
from neuron_dynamo.lowering.program import Signature, TensorSpec
from neuron_dynamo.runtime.inputs import Admission

_NAME = re.compile(r"(input|output)(\d{1,9})(?:\.must_alias_input)?")

_NUMPY_LACKS = {
    torch.bool: torch.uint8,
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}
"""Types that travel as others of the same size, which NumPy knows."""


def available() -> bool:
    """Whether nrtpy is installed. Imports nothing."""
    return importlib.util.find_spec("nrtpy") is not None


class NrtpyExecutable:
    """A NEFF loaded by nrtpy, with its signature; see runtime.base.Executable for the contract. Thread-safe: calls take turns.

    Raises CompilerMissingError without nrtpy, NeffError for a NEFF that does not fit `signature`, ExecutionError where nrtpy fails.
    """

    def __init__(self, neff: bytes, signature: Signature, *, core: int = 0, collectives: tuple[int, int] | None = None) -> None:
        neff_file.read_header(neff)
        if not available():
            raise CompilerMissingError("option 'runtime' is 'nrtpy', which is not installed", remedy="install nrtpy, or use runtime='nrt'")
        self.signature = signature
        self._nrtpy: Any = importlib.import_module("nrtpy")
        self._lock = threading.Lock()
        self._core = core
        self._admission = Admission(signature)
        # nrtpy takes a path, and reads it whenever it likes.
        folder = tempfile.mkdtemp(prefix="neuron-dynamo-")
        path = Path(folder, "graph.neff")
        weakref.finalize(self, _remove, folder, os.getpid())
        path.write_bytes(neff)
        rank, world = collectives or (0, 1)
        try:
            self._model = self._nrtpy.NrtpyModel.load_from_neff(
                str(path), core_id=core, cc_enabled=collectives is not None, rank_id=rank, world_size=world
            )
        except RuntimeError as error:  # NrtpyError and NrtError are
            raise ExecutionError(f"nrtpy cannot load the NEFF: {error}") from error
        self._inputs = self._named(self._model.input_tensors_info, "input", signature.inputs)
        self._outputs = self._named(self._model.output_tensors_info, "output", signature.outputs)
        missing = [i for i, spec in enumerate(signature.outputs) if i not in self._outputs and 0 not in spec.shape]
        if missing:
            raise _misfit(f"it has no tensor 'output{missing[0]}'")
        self._shared = {output: argument for output, argument in signature.bound_aliases() if output in self._outputs}
        self._tensors: dict[str, Any] = {}

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        copies = self._admission.copies(inputs)
        with self._lock:
            try:
                for index, name in self._inputs.items():
                    dense = self._admission.dense(index, inputs[index]) if index in copies else inputs[index].detach()
                    self._write(name, _to_numpy(dense))
                for index, name in self._outputs.items():
                    if index in self._shared:
                        self._tensors[name] = self._tensors[self._inputs[self._shared[index]]]
                    elif name not in self._tensors:
                        spec = self.signature.outputs[index]
                        self._write(name, _to_numpy(torch.zeros(spec.shape, dtype=torch.uint8).to(spec.dtype)))
                self._model(
                    inputs={name: self._tensors[name] for name in self._inputs.values()},
                    outputs={name: self._tensors[name] for name in self._outputs.values()},
                )
                return [self._read(index, spec) for index, spec in enumerate(self.signature.outputs)]
            except RuntimeError as error:
                if isinstance(error, ExecutionError):
                    raise
                raise ExecutionError(f"nrtpy failed to run the compiled graph: {error}") from error

    def _write(self, name: str, array: Any) -> None:
        if name in self._tensors:
            self._tensors[name].write_from_numpy(array)
        else:
            self._tensors[name] = self._nrtpy.NrtpyTensor.from_numpy(array, name=name, core_id=self._core)

    def _read(self, index: int, spec: TensorSpec) -> torch.Tensor:
        if index not in self._outputs:
            return torch.empty(spec.shape, dtype=spec.dtype)
        array = self._tensors[self._outputs[index]].numpy()
        plain = torch.from_numpy(array.copy()).reshape(-1).view(torch.uint8)
        if spec.dtype is torch.bool:
            return plain.ne(0).view(spec.shape)
        return plain.view(spec.dtype).view(spec.shape)

    def _named(self, infos: Any, usage: str, specs: tuple[TensorSpec, ...]) -> dict[int, str]:
        """Names of nrtpy's tensors by their index in the signature, sizes checked."""
        found: dict[int, str] = {}
        for name, info in infos.items():
            match = _NAME.fullmatch(name)
            if match is None or match[1] != usage or int(match[2]) >= len(specs) or int(match[2]) in found:
                raise _misfit(f"it has a tensor {name!r} among its {usage}s, which the program does not have")
            spec = specs[int(match[2])]
            size = prod(spec.shape) * spec.dtype.itemsize
            if info.size != size:
                raise _misfit(f"{name} has {info.size} bytes, the program's {spec.shape} of {spec.dtype} {size}")
            if size:
                found[int(match[2])] = name
        return found


def _to_numpy(tensor: torch.Tensor) -> Any:
    """The tensor's memory as an array; what NumPy has no type for as one of the same size."""
    return tensor.view(_NUMPY_LACKS.get(tensor.dtype, tensor.dtype)).numpy()


def _misfit(what: str) -> NeffError:
    return NeffError(f"the NEFF does not fit its program: {what}", remedy="compile the graph again")


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # a fork has this finalizer too
        shutil.rmtree(folder, ignore_errors=True)
