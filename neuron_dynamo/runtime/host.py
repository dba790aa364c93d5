"""HostExecutable: runs an XLA CPU executable on torch tensors without copies, a few microseconds per call."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards

from neuron_dynamo import xla
from neuron_dynamo.errors import ExecutionError
from neuron_dynamo.lowering.program import DTYPE_NAMES, Signature, TensorSpec

_data_ptr = torch.Tensor.data_ptr
_from_dlpack = torch._C._from_dlpack  # torch.utils.dlpack adds 1.4 us of Python to each output
_NEVER = -1  # an address that no tensor has
_NO_MEMORY = "a tensor that has no memory, or less than its shape needs"

_MAX_BUFFERS_PER_SPEC = 512
_MAX_SEEN_PER_SPEC = 4096
_MAX_LAYOUTS = 4


class _BufferPool:
    """XLA buffers over caller memory for one TensorSpec, by address, shared by all executables.

    A buffer does not own its memory. It is used only in a call that holds a live tensor of exactly this shape, dtype and
    dense layout at exactly this address, so that an entry over freed memory is never read and a reused address is right.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self._importer = xla.Importer(spec.shape, DTYPE_NAMES[spec.dtype])
        self._empty = self._importer.empty() if 0 in spec.shape else None
        self._views: bool | None = None  # not asked yet
        self._seen: set[int] = set()
        self.known: dict[int, xla.Buffer] = {}

    def make(self, address: int) -> tuple[xla.Buffer, bool]:
        """A buffer of the memory at `address`, and whether it is a view, which stays right, or a copy, good for one call."""
        if self._empty is not None:
            return self._empty, True
        if address % xla.ALIGNMENT or self._views is False:
            return self._importer.copy(address), False
        buffer = self._importer.view(address)
        if self._views is None:
            # Asked once per spec: the answer depends on the alignment alone, and costs 50 us without the `jax` package.
            self._views = self._importer.is_view(buffer, address)
            if not self._views:
                return buffer, False
        # A buffer takes 3 KB: keep those of addresses that come back, not of every address that passes.
        if address not in self._seen:
            if len(self._seen) >= _MAX_SEEN_PER_SPEC:
                self._seen.clear()
            self._seen.add(address)
        else:
            if len(self.known) >= _MAX_BUFFERS_PER_SPEC:
                self.known.clear()
            self.known[address] = buffer
        return buffer, True

    def copy(self, address: int) -> xla.Buffer:
        """A buffer that XLA owns, and may therefore take away."""
        return self._importer.copy(address) if self._empty is None else self._importer.empty()


_pools: weakref.WeakValueDictionary[TensorSpec, _BufferPool] = weakref.WeakValueDictionary()


def _pool(spec: TensorSpec) -> _BufferPool:
    pool = _pools.get(spec)
    if pool is None:
        pool = _pools[spec] = _BufferPool(spec)
    return pool


class _Layout:
    """One combination of input layouts already checked against the signature: a single C++ check recognises it again.

    The check compares, for each tensor, its Python type, dispatch keys (so also conjugate and negative bits), dtype,
    device, requires_grad, sizes and strides. `copies` lists the inputs that need a dense copy.
    """

    def __init__(self, inputs: list[torch.Tensor], copies: tuple[int, ...]) -> None:
        sizes: Any = [list(tensor.shape) for tensor in inputs]
        strides: Any = [list(tensor.stride()) for tensor in inputs]
        self.matches = TensorGuards(*inputs, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        self.copies = copies


class HostExecutable:
    """An XLA CPU executable with its signature; see runtime.base.Executable for the contract. Thread-safe.

    `donated` lists inputs whose buffers XLA consumes: it gets its own copy of those. Denormals flush to zero inside.
    Raises ExecutionError for inputs that do not fit the signature, ForkError in a child forked after XLA had started.
    """

    def __init__(self, executable: xla.LoadedExecutable, signature: Signature, donated: tuple[int, ...] = ()) -> None:
        self.signature = signature
        self.executable = executable
        self._run = xla.caller(executable, len(signature.outputs))
        self._pools = [_pool(spec) for spec in signature.inputs]
        self._count = len(signature.inputs)
        # DLPack brings tensors of no elements with strides of 0.
        self._empty_outputs = [(index, spec) for index, spec in enumerate(signature.outputs) if 0 in spec.shape]
        self._donated = frozenset(donated)
        # Both are replaced whole and never changed in place, so that concurrent calls see one state or the other.
        self._layouts: tuple[_Layout, ...] = ()
        self._bound: tuple[list[int], list[xla.Buffer]] = ([_NEVER] * self._count, [None] * self._count)

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if xla.forked:
            xla.raise_forked()
        if len(inputs) != self._count:
            raise ExecutionError(f"the compiled graph takes {self._count} inputs, {len(inputs)} were given")
        # `inputs`, dense copies among them, must stay alive until the run is over: buffers do not own memory.
        for layout in self._layouts:
            if layout.matches(*inputs):
                if layout.copies:
                    inputs = self._with_copies(inputs, layout.copies)
                break
        else:
            inputs = self._admit(inputs)
        addresses = list(map(_data_ptr, inputs))
        bound, buffers = self._bound
        if addresses != bound:
            buffers = self._bind(inputs, addresses, bound, buffers)
        try:
            outputs = [_from_dlpack(capsule) for capsule in self._run(buffers)]
        except Exception as error:
            raise ExecutionError(f"XLA failed to run the compiled graph: {error}") from error
        for index, spec in self._empty_outputs:
            outputs[index] = torch.empty(spec.shape, dtype=spec.dtype)
        return outputs

    def _admit(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Checks every input, remembers this combination of layouts, and returns the inputs with all of them dense."""
        for index, (tensor, spec) in enumerate(zip(inputs, self.signature.inputs, strict=True)):
            _check(index, tensor, spec)
        copies = tuple(
            i
            for i, (tensor, spec) in enumerate(zip(inputs, self.signature.inputs, strict=True))
            if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or tensor.dtype is not spec.dtype
        )
        if len(set(map(id, inputs))) == self._count > 0:  # TensorGuards never matches when a tensor comes twice
            self._layouts = (_Layout(inputs, copies), *self._layouts[: _MAX_LAYOUTS - 1])
        return self._with_copies(inputs, copies)

    def _bind(self, inputs: list[torch.Tensor], addresses: list[int], bound: list[int], buffers: list[xla.Buffer]) -> list[xla.Buffer]:
        """Buffers for `addresses`, reusing those of `bound` that did not move; remembers the ones that stay right."""
        buffers, passing = list(buffers), []
        for index in [i for i, (now, before) in enumerate(zip(addresses, bound, strict=True)) if now != before]:
            address, pool, donated = addresses[index], self._pools[index], index in self._donated
            buffer = None if donated else pool.known.get(address)
            if buffer is None:
                if not _fits_storage(inputs[index]):
                    raise _refusal(index, self.signature.inputs[index], _NO_MEMORY)
                buffer, lasting = (pool.copy(address), False) if donated else pool.make(address)
                if not lasting:
                    passing.append(index)
            buffers[index] = buffer
        if not passing:
            self._bound = (addresses, buffers)
            return buffers
        kept_addresses, kept = list(addresses), list(buffers)
        for index in passing:
            kept_addresses[index], kept[index] = _NEVER, None
        self._bound = (kept_addresses, kept)
        return buffers

    def _with_copies(self, inputs: list[torch.Tensor], copies: tuple[int, ...]) -> list[torch.Tensor]:
        """`inputs` with a dense, resolved copy of each of `copies`, in the dtype of the signature."""
        if not copies:
            return inputs
        inputs = list(inputs)
        for index in copies:
            tensor = inputs[index].detach()
            if not _fits_storage(tensor):
                raise _refusal(index, self.signature.inputs[index], _NO_MEMORY)
            if tensor.is_conj() or tensor.is_neg():
                tensor = tensor.resolve_conj().resolve_neg()
            inputs[index] = tensor.to(self.signature.inputs[index].dtype).contiguous()
        return inputs


def _check(index: int, tensor: Any, spec: TensorSpec) -> None:
    if not isinstance(tensor, torch.Tensor):
        given = f"a {type(tensor).__name__}"
    elif type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        given = f"a {type(tensor).__name__}, which has no memory of its own"
    elif tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        given = f"a {tensor.layout} tensor on {tensor.device}"
    elif (tensor.dtype is not spec.dtype and not _is_random_number(tensor, spec)) or tuple(tensor.shape) != spec.shape:
        given = f"of shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
    elif not _has_memory(tensor):
        given = _NO_MEMORY
    else:
        return
    raise _refusal(index, spec, given)


def _is_random_number(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    """Dynamo traces a number of Python's `random` as a 0-d float32 tensor, and then passes a float64 one."""
    return spec.shape == () and spec.dtype is torch.float32 and tensor.dtype is torch.float64


def _refusal(index: int, spec: TensorSpec, given: str) -> ExecutionError:
    expected = f"a CPU tensor of shape {spec.shape} and dtype {spec.dtype}"
    return ExecutionError(f"input {index} of the compiled graph must be {expected}, but is {given}")


def _has_memory(tensor: torch.Tensor) -> bool:
    """False for zero tensors and wrappers such as functorch's, whose Python type is a plain Tensor's."""
    try:
        return tensor.numel() == 0 or (tensor.data_ptr() != 0 and _fits_storage(tensor))
    except RuntimeError:
        return False


def _fits_storage(tensor: torch.Tensor) -> bool:
    """Whether every element lies in the storage, which may have been shrunk under the tensor (FSDP frees parameters so)."""
    if tensor.numel() == 0:
        return True
    if tensor.is_contiguous():
        extent = tensor.numel()
    else:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + extent) * tensor.element_size() <= tensor.untyped_storage().nbytes()
