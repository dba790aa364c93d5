"""Inputs of a call against a signature: what fits, and which need a dense copy before an executable may read their memory."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards

from neuron_dynamo.errors import ExecutionError
from neuron_dynamo.lowering.program import Signature, TensorSpec

NO_MEMORY = "a tensor that has no memory, or less than its shape needs"

_MAX_LAYOUTS = 4


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


class Admission:
    """Checks the inputs of each call against a signature. Thread-safe; a combination of layouts seen before costs one C++ check."""

    def __init__(self, signature: Signature) -> None:
        self._specs = signature.inputs
        self._count = len(signature.inputs)
        # Replaced whole and never changed in place, so that concurrent calls see one state or the other.
        self._layouts: tuple[_Layout, ...] = ()

    def copies(self, inputs: list[torch.Tensor]) -> tuple[int, ...]:
        """The indices of those of `inputs` that need `dense`. Raises ExecutionError for one that does not fit."""
        if len(inputs) != self._count:
            raise ExecutionError(f"the compiled graph takes {self._count} inputs, {len(inputs)} were given")
        for layout in self._layouts:
            if layout.matches(*inputs):
                return layout.copies
        return self._admit(inputs)

    def _admit(self, inputs: list[torch.Tensor]) -> tuple[int, ...]:
        """Checks every input and remembers this combination of layouts."""
        for index, (tensor, spec) in enumerate(zip(inputs, self._specs, strict=True)):
            _check(index, tensor, spec)
        copies = tuple(
            i
            for i, (tensor, spec) in enumerate(zip(inputs, self._specs, strict=True))
            if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or tensor.dtype is not spec.dtype
        )
        if len(set(map(id, inputs))) == self._count > 0:  # TensorGuards never matches when a tensor comes twice
            self._layouts = (_Layout(inputs, copies), *self._layouts[: _MAX_LAYOUTS - 1])
        return copies

    def dense(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """A dense, resolved copy of input `index` in the dtype of the signature. Raises ExecutionError where its memory is gone."""
        tensor = tensor.detach()
        if not fits_storage(tensor):
            raise refusal(index, self._specs[index], NO_MEMORY)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        return tensor.to(self._specs[index].dtype).contiguous()


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
        given = NO_MEMORY
    else:
        return
    raise refusal(index, spec, given)


def _is_random_number(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    """Dynamo traces a number of Python's `random` as a 0-d float32 tensor, and then passes a float64 one."""
    return spec.shape == () and spec.dtype is torch.float32 and tensor.dtype is torch.float64


def refusal(index: int, spec: TensorSpec, given: str) -> ExecutionError:
    expected = f"a CPU tensor of shape {spec.shape} and dtype {spec.dtype}"
    return ExecutionError(f"input {index} of the compiled graph must be {expected}, but is {given}")


def _has_memory(tensor: torch.Tensor) -> bool:
    """False for zero tensors and wrappers such as functorch's, whose Python type is a plain Tensor's."""
    try:
        return tensor.numel() == 0 or (tensor.data_ptr() != 0 and fits_storage(tensor))
    except RuntimeError:
        return False


def fits_storage(tensor: torch.Tensor) -> bool:
    """Whether every element lies in the storage, which may have been shrunk under the tensor (FSDP frees parameters so)."""
    if tensor.numel() == 0:
        return True
    if tensor.is_contiguous():
        extent = tensor.numel()
    else:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + extent) * tensor.element_size() <= tensor.untyped_storage().nbytes()
