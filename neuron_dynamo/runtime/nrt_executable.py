"""NrtExecutable: runs a NEFF on a NeuronCore. Tensors on the device are made once; inputs are sent only where they changed."""

from __future__ import annotations

import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_void_p
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from neuron_dynamo import neff as neff_file
from neuron_dynamo.errors import ExecutionError, NeffError, NumericalWarning
from neuron_dynamo.lowering.program import Signature, TensorSpec
from neuron_dynamo.runtime import nrt
from neuron_dynamo.runtime.inputs import NO_MEMORY, Admission, fits_storage, refusal
from neuron_dynamo.runtime.nrt_api import (
    COMPLETED_WITH_NAN,
    DTYPE_NAMES,
    PLACEMENT_DEVICE,
    SUCCESS,
    USAGE_INPUT,
    USAGE_OUTPUT,
    TensorInfoArray,
    tensor_infos,
)
from neuron_dynamo.runtime.residency import EXACT, Residency

_NAME = re.compile(r"(input|output)(\d{1,9})(\.must_alias_input)?")

_DTYPES: dict[torch.dtype, frozenset[str]] = {
    torch.bool: frozenset({"UINT8", "INT8"}),
    torch.int8: frozenset({"INT8"}),
    torch.uint8: frozenset({"UINT8"}),
    torch.int16: frozenset({"INT16"}),
    torch.uint16: frozenset({"UINT16"}),
    torch.int32: frozenset({"INT32"}),
    torch.uint32: frozenset({"UINT32"}),
    torch.int64: frozenset({"INT64"}),
    torch.uint64: frozenset({"UINT64"}),
    torch.float16: frozenset({"FLOAT16"}),
    torch.bfloat16: frozenset({"BFLOAT16"}),
    torch.float32: frozenset({"FLOAT32", "FP32R"}),
    torch.float8_e4m3fn: frozenset({"INT8", "FP8_E4"}),
    torch.float8_e5m2: frozenset({"INT8", "FP8_E5"}),
}
"""What libnrt may call each of our types: it has no boolean, and reports fp8 as INT8."""


@dataclass
class _Resources:
    """What an executable holds of the runtime, given back by `release` once and in the documented order."""

    runtime: nrt.NrtRuntime
    process: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    model: c_void_p | None = None
    sets: list[c_void_p] = field(default_factory=list)
    tensors: list[c_void_p] = field(default_factory=list)
    released: bool = False

    def release(self) -> None:
        if os.getpid() != self.process:
            return  # the handles are the parent's
        with self.lock:
            if self.released:
                return
            self.released = True
            api = self.runtime.api
            for handle in self.sets:
                api.nrt_destroy_tensor_set(byref(handle))
            for handle in self.tensors:
                api.nrt_tensor_free(byref(handle))
            if self.model is not None:
                api.nrt_unload(self.model)


@dataclass(frozen=True)
class _Input:
    """A bound input: its index in the signature, the device tensor and its bytes."""

    index: int
    handle: c_void_p
    size: int
    residency: Residency


class NrtExecutable:
    """A NEFF loaded on a core, with its signature; see runtime.base.Executable for the contract. Thread-safe: calls take turns.

    The NEFF's own list of tensors is checked against `signature` (names input0.., output0.., sizes, types). An input that the NEFF
    does not list is not used by it. Outputs of `signature.bound_aliases()` share their input's device tensor.

    Raises NeffError where the NEFF is damaged or does not fit, ExecutionError where the runtime fails. A call raises ExecutionError
    for inputs that do not fit or a failed execution, ForkError in a child forked after the runtime had started; it warns with
    NumericalWarning where the runtime reports a NaN.
    """

    def __init__(
        self,
        runtime: nrt.NrtRuntime,
        neff: bytes,
        signature: Signature,
        *,
        core: int = 0,
        collectives: tuple[int, int] | None = None,
        resident: str = EXACT,
    ) -> None:
        self.signature = signature
        self._resident = resident
        self._api = runtime.api
        self._runtime = runtime
        self._admission = Admission(signature)
        self._resources = _Resources(runtime, os.getpid())
        self._finalizer = weakref.finalize(self, self._resources.release)
        self._inputs: list[_Input] = []
        self._read: list[tuple[int, c_void_p, int]] = []
        _check_place(runtime, neff, core)
        try:
            self._resources.model = runtime.load(neff, core, collectives)
            self._bind(core)
        except BaseException:
            self.release()
            raise
        self._makers = [_maker(spec) for spec in signature.outputs]
        self._booleans = [index for index, spec in enumerate(signature.outputs) if spec.dtype is torch.bool]
        self._aliased = [slot for slot in self._inputs if slot.index in dict(map(reversed, signature.bound_aliases()))]  # type: ignore[arg-type]
        runtime.executables.add(self)

    def release(self) -> None:
        """Give back the model and its device memory now, not when this object dies. Calls raise ExecutionError from then on."""
        self._finalizer()

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if nrt.forked:
            nrt.raise_forked()
        copies = self._admission.copies(inputs)
        outputs = [make() for make in self._makers]
        resources, api = self._resources, self._api
        with resources.lock:
            if resources.released:
                raise ExecutionError("the compiled graph was unloaded from the device")
            for slot in self._inputs:
                if not slot.residency.holds(inputs[slot.index]):
                    self._send(slot, inputs[slot.index], slot.index in copies)
            status = api.nrt_execute(resources.model, *resources.sets)
            for slot in self._aliased:
                slot.residency.forget()
            if status != SUCCESS and status != COMPLETED_WITH_NAN:
                for slot in self._inputs:
                    slot.residency.forget()
                self._runtime.check(status, "running the compiled graph")
            for index, handle, size in self._read:
                if read := api.nrt_tensor_read(handle, outputs[index].data_ptr(), 0, size):
                    self._runtime.check(read, f"reading output {index} of the compiled graph")
        if status == COMPLETED_WITH_NAN:
            text = f"ND142: a compiled graph produced a NaN: the Neuron runtime returned {api.status_text(status)}; its outputs are valid"
            warnings.warn(text, NumericalWarning, stacklevel=2)
        for index in self._booleans:
            outputs[index] = outputs[index].ne(0)
        return outputs

    def _send(self, slot: _Input, tensor: torch.Tensor, copy: bool) -> None:
        if not fits_storage(tensor):
            raise refusal(slot.index, self.signature.inputs[slot.index], NO_MEMORY)
        record = slot.residency.sending(tensor)
        dense = self._admission.dense(slot.index, tensor) if copy else tensor
        status = self._api.nrt_tensor_write(slot.handle, dense.data_ptr(), 0, slot.size)
        if status != SUCCESS:
            self._runtime.check(status, f"sending input {slot.index} of the compiled graph")
        slot.residency.sent(record)

    def _bind(self, core: int) -> None:
        """Makes the device tensors that the NEFF lists and puts them into one set for the inputs and one for the outputs."""
        listed = self._listed()
        aliases = dict(self.signature.bound_aliases())
        input_set, output_set = self._new_set(), self._new_set()
        handles: dict[int, c_void_p] = {}
        for index, (name, size) in sorted(listed[USAGE_INPUT].items()):
            handles[index] = self._new_tensor(core, name, size)
            self._add(input_set, name, handles[index])
            if size:
                self._inputs.append(_Input(index, handles[index], size, Residency(exact=self._resident == EXACT)))
        for index, (name, size) in sorted(listed[USAGE_OUTPUT].items()):
            shared = handles.get(aliases[index]) if index in aliases else None
            handle = shared if shared is not None else self._new_tensor(core, name, size)
            self._add(output_set, name, handle)
            if size:
                self._read.append((index, handle, size))

    def _listed(self) -> dict[int, dict[int, tuple[bytes, int]]]:
        """(name, bytes) of each tensor of the NEFF by usage and index, all of them checked against the signature."""
        array = POINTER(TensorInfoArray)()
        api = self._api
        self._runtime.check(api.nrt_get_model_tensor_info(self._resources.model, byref(array)), "reading the NEFF's tensors")
        listed: dict[int, dict[int, tuple[bytes, int]]] = {USAGE_INPUT: {}, USAGE_OUTPUT: {}}
        specs = {USAGE_INPUT: self.signature.inputs, USAGE_OUTPUT: self.signature.outputs}
        try:
            for info in tensor_infos(array):
                name = info.name.decode("utf-8", "replace")
                match = _NAME.fullmatch(name)
                usage = USAGE_INPUT if match and match[1] == "input" else USAGE_OUTPUT
                if match is None or usage != info.usage or int(match[2]) >= len(specs[usage]) or int(match[2]) in listed[usage]:
                    raise _misfit(f"it has a tensor {name!r} of usage {info.usage}, which the program does not have")
                _check_tensor(name, info, specs[usage][int(match[2])])
                listed[usage][int(match[2])] = (info.name, info.size)
        finally:
            api.nrt_free_model_tensor_info(array)
        for index, spec in enumerate(self.signature.outputs):
            if index not in listed[USAGE_OUTPUT] and 0 not in spec.shape:
                raise _misfit(f"it has no tensor 'output{index}'")
        for output, index in self.signature.bound_aliases():
            if output in listed[USAGE_OUTPUT] and index not in listed[USAGE_INPUT] and 0 not in self.signature.inputs[index].shape:
                raise _misfit(f"'output{output}' is the new value of 'input{index}', which it does not have")
        return listed

    def _new_tensor(self, core: int, name: bytes, size: int) -> c_void_p:
        handle = c_void_p()
        status = self._api.nrt_tensor_allocate(PLACEMENT_DEVICE, core, size, name, byref(handle))
        self._runtime.check(status, f"allocating {size} bytes for {name.decode('utf-8', 'replace')} on core {core}")
        self._resources.tensors.append(handle)
        return handle

    def _new_set(self) -> c_void_p:
        handle = c_void_p()
        self._runtime.check(self._api.nrt_allocate_tensor_set(byref(handle)), "allocating a tensor set")
        self._resources.sets.append(handle)
        return handle

    def _add(self, tensor_set: c_void_p, name: bytes, handle: c_void_p) -> None:
        self._runtime.check(self._api.nrt_add_tensor_to_tensor_set(tensor_set, name, handle), f"binding {name.decode('utf-8', 'replace')}")


def load(
    neff: bytes,
    signature: Signature,
    *,
    library: str | None = None,
    core: int = 0,
    collectives: tuple[int, int] | None = None,
    resident: str = EXACT,
) -> NrtExecutable:
    """`neff` on logical core `core` of the process's runtime, which the first call starts.

    `library` is the path of libnrt (looked up by default), `collectives` (rank, world size) for a program with collective operations,
    `resident` the option. Raises CompilerMissingError where there is no libnrt, and what `nrt.runtime` and NrtExecutable raise.
    """
    neff_file.read_header(neff)  # refuse what is no NEFF at all before the runtime starts and takes the cores
    return NrtExecutable(nrt.runtime(library), neff, signature, core=core, collectives=collectives, resident=resident)


def _maker(spec: TensorSpec) -> Callable[[], torch.Tensor]:
    """A function that makes the host tensor of an output; of booleans, bytes that are not yet known to be 0 or 1."""
    dtype: Any = torch.uint8 if spec.dtype is torch.bool else spec.dtype
    return lambda shape=spec.shape: torch.empty(shape, dtype=dtype)  # type: ignore[misc]


def _misfit(what: str) -> NeffError:
    return NeffError(f"the NEFF does not fit its program: {what}", remedy="compile the graph again")


def _check_tensor(name: str, info: Any, spec: TensorSpec) -> None:
    size = prod(spec.shape) * spec.dtype.itemsize
    dtype = DTYPE_NAMES.get(info.dtype, f"unknown type {info.dtype}")
    if info.size != size or dtype not in _DTYPES.get(spec.dtype, frozenset()):
        raise _misfit(f"{name} has {info.size} bytes of {dtype}, the program's {spec.shape} of {spec.dtype} {size} bytes")
    shape = tuple(info.shape[i] for i in range(info.ndim)) if info.shape else spec.shape
    if prod(shape) != prod(spec.shape):
        raise _misfit(f"{name} has shape {shape}, the program's {spec.shape}")


def _check_place(runtime: nrt.NrtRuntime, neff: bytes, core: int) -> None:
    """What nrt_load answers with NRT_INVALID too, although the NEFF is well."""
    count = runtime.api.count_vncs()
    if not 0 <= core < count:
        raise ExecutionError(
            f"core {core} was asked for, and this process sees {count} logical NeuronCores",
            remedy="choose among them, or let it see more by NEURON_RT_VISIBLE_CORES",
        )
    made_for, here = neff_file.read_header(neff).lnc_size, runtime.lnc()
    if made_for in (1, 2) and here is not None and made_for != here:
        raise ExecutionError(
            f"the NEFF was compiled for logical cores of {made_for} physical ones, the runtime has {here}",
            remedy=f"set NEURON_LOGICAL_NC_CONFIG={made_for}, or compile with options={{'lnc': {here}}}",
        )
