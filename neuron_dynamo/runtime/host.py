"""HostExecutable: runs an XLA CPU executable on torch tensors without copies, a few microseconds per call."""

from __future__ import annotations

import weakref

import torch

from neuron_dynamo import xla
from neuron_dynamo.errors import ExecutionError
from neuron_dynamo.lowering.program import DTYPE_NAMES, Signature, TensorSpec
from neuron_dynamo.runtime.inputs import NO_MEMORY, Admission, fits_storage, refusal

_data_ptr = torch.Tensor.data_ptr
_from_dlpack = torch._C._from_dlpack  # torch.utils.dlpack adds 1.4 us of Python to each output
_NEVER = -1  # an address that no tensor has

_MAX_BUFFERS_PER_SPEC = 512
_MAX_SEEN_PER_SPEC = 4096


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
        self._admission = Admission(signature)
        # Replaced whole and never changed in place, so that concurrent calls see one state or the other.
        self._bound: tuple[list[int], list[xla.Buffer]] = ([_NEVER] * self._count, [None] * self._count)

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if xla.forked:
            xla.raise_forked()
        copies = self._admission.copies(inputs)
        if copies:
            # `inputs`, dense copies among them, must stay alive until the run is over: buffers do not own memory.
            inputs = list(inputs)
            for index in copies:
                inputs[index] = self._admission.dense(index, inputs[index])
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

    def _bind(self, inputs: list[torch.Tensor], addresses: list[int], bound: list[int], buffers: list[xla.Buffer]) -> list[xla.Buffer]:
        """Buffers for `addresses`, reusing those of `bound` that did not move; remembers the ones that stay right."""
        buffers, passing = list(buffers), []
        for index in [i for i, (now, before) in enumerate(zip(addresses, bound, strict=True)) if now != before]:
            address, pool, donated = addresses[index], self._pools[index], index in self._donated
            buffer = None if donated else pool.known.get(address)
            if buffer is None:
                if not fits_storage(inputs[index]):
                    raise refusal(index, self.signature.inputs[index], NO_MEMORY)
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
