"""Whether a device tensor still holds the values of a host tensor, so that a weight is sent once and not on every call.

A host tensor counts as unchanged only if it is the same Python object over the same storage, address and strides, PyTorch's version
counter stands where it stood, and its bytes look the same: all of them in a tensor of up to SMALL bytes, else SAMPLES words spread over
it. The bytes are looked at because `.data`, NumPy views and other processes write without moving the counter. What that cannot
see is a write past the counter to a few elements of a large tensor: `forget_all` is for those who write so. In any doubt it is sent again.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

SMALL = 16 << 10
"""Bytes up to which a tensor is compared whole."""
SAMPLES = 64
"""8-byte words of a larger tensor that are compared."""

_every: weakref.WeakSet[Residency] = weakref.WeakSet()


def forget_all() -> None:
    """Have every executable send all of its inputs again at its next call.

    To be called after writing to a few elements of a large tensor by ways that PyTorch does not count: `.data`, NumPy, shared memory;
    and before `torch.utils.swap_tensors`, which refuses tensors that something refers to weakly, as this does to what it has sent.
    """
    for residency in list(_every):
        residency.forget()


class _Sent:
    """A host tensor as it was when it was sent. Holds no memory of the tensor, only what recognises it."""

    __slots__ = ("address", "bytes_now", "content", "span", "storage", "stride", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.version = tensor._version
        self.tensor = weakref.ref(tensor)
        # As long as this exists, no other storage can come to lie at the same place and be taken for this one.
        self.storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.address, self.stride, self.span = tensor.data_ptr(), tensor.stride(), _span(tensor)
        self.bytes_now = _reader(self.address, self.span)
        self.content = self.bytes_now()

    def is_now(self, tensor: torch.Tensor) -> bool:
        if self.tensor() is not tensor or self.version != tensor._version:
            return False
        storage = tensor.untyped_storage()
        if storage._cdata != self.storage.cdata or tensor.data_ptr() != self.address or tensor.stride() != self.stride:
            return False
        # The storage may have been shrunk under the tensor: then there is nothing to look at.
        room = storage.nbytes() - tensor.storage_offset() * tensor.element_size()
        return self.span <= room and self.bytes_now() == self.content


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element of a tensor that has elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _reader(address: int, size: int) -> Callable[[], bytes]:
    """A function that copies out the bytes to be compared of the `size` bytes at `address`, which must then be alive."""
    memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    if size <= SMALL:
        return memory.tobytes
    words = memory[: size // 8 * 8].cast("Q")
    # An odd step, so that rows of a power of two are not all sampled in the same column.
    return words[:: (len(words) // SAMPLES) | 1].tobytes


class Residency:
    """What one device tensor holds. Not thread-safe: its executable has a lock."""

    __slots__ = ("__weakref__", "_seen", "_sent")

    def __init__(self) -> None:
        _every.add(self)
        self._seen = 0
        self._sent: _Sent | None = None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the device tensor has the values of `tensor`."""
        return self._sent is not None and self._sent.is_now(tensor)

    def sending(self, tensor: torch.Tensor) -> _Sent | None:
        """To be called before `tensor` is sent; its result goes to `sent` afterwards, so that a write in between is noticed.

        None the first time that a tensor comes: an activation never comes again, and to remember it costs more than to forget it.
        """
        self._sent = None
        if self._seen != id(tensor):
            self._seen = id(tensor)
            return None
        if tensor.is_inference() or tensor.is_neg() or tensor.is_conj():  # no version counter; values that the memory does not show
            return None
        return _Sent(tensor)

    def sent(self, record: _Sent | None) -> None:
        self._sent = record

    def forget(self) -> None:
        """The device tensor holds something else now, or may."""
        self._sent = None
