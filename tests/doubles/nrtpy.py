"""A double of nrtpy by its pages "model API", "tensor API" and "errors": tensors on no device, programs run by the host target."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.doubles.libnrt import LoadedProgram


class NrtpyError(RuntimeError):
    """Base of nrtpy's errors."""


class NrtError(NrtpyError):
    """A status of libnrt."""


@dataclass(frozen=True)
class TensorMetadata:
    shape: tuple[int, ...]
    size: int


class NrtpyTensor:
    """An array that stands for device memory: what it was made from is copied."""

    def __init__(self, memory: np.ndarray[Any, Any], name: str | None, core_id: int) -> None:
        self._memory, self.name, self.core_id = memory, name, core_id
        self.shape, self.dtype = memory.shape, memory.dtype

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any], name: str | None = None, core_id: int = 0) -> NrtpyTensor:
        return cls(np.array(array, order="C", copy=True), name, core_id)

    def write_from_numpy(self, array: np.ndarray[Any, Any]) -> None:
        if array.nbytes != self._memory.nbytes:
            raise ValueError("size of the source array does not match")
        ctypes.memmove(self._memory.ctypes.data, np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._memory.copy()


class NrtpyModel:
    """A NEFF; `fault` is the text of the next failure."""

    fault = ""
    loaded: tuple[Any, ...] = ()

    def __init__(self, program: LoadedProgram, core_id: int) -> None:
        self._program, self._core = program, core_id
        self.input_tensors_info = {t["name"]: TensorMetadata(tuple(t["shape"]), t["size"]) for t in program.tensors["inputs"]}
        self.output_tensors_info = {t["name"]: TensorMetadata(tuple(t["shape"]), t["size"]) for t in program.tensors["outputs"]}

    @classmethod
    def load_from_neff(
        cls, neff_path: str, name: str | None = None, core_id: int = 0, cc_enabled: bool = False, rank_id: int = 0, world_size: int = 1
    ) -> NrtpyModel:
        cls._fail("Failed to load model")
        cls.loaded = (core_id, cc_enabled, rank_id, world_size)
        return cls(LoadedProgram(Path(neff_path).read_bytes()), core_id)

    def __call__(
        self,
        inputs: dict[str, NrtpyTensor],
        outputs: dict[str, NrtpyTensor] | None = None,
        save_trace: bool = False,
        ntff_name: str | None = None,
    ) -> None:
        self._fail("Failed to execute")
        assert outputs is not None and inputs.keys() == self.input_tensors_info.keys() and outputs.keys() == self.output_tensors_info.keys()
        for infos, tensors in ((self.input_tensors_info, inputs), (self.output_tensors_info, outputs)):
            for key, info in infos.items():
                assert tensors[key]._memory.nbytes == info.size and tensors[key].core_id == self._core
        for output, argument in self._program.tensors["aliases"]:
            assert list(outputs.values())[output] is list(inputs.values())[argument], "a mutated input has one tensor"
        self._program.run(_addresses(inputs, self.input_tensors_info), _addresses(outputs, self.output_tensors_info))

    @classmethod
    def _fail(cls, what: str) -> None:
        if cls.fault:
            cls.fault, status = "", cls.fault
            raise NrtError(f"NRT Error {status}: {what}")


def _addresses(tensors: dict[str, NrtpyTensor], infos: dict[str, TensorMetadata]) -> list[int]:
    return [tensors[name]._memory.ctypes.data for name in infos]
