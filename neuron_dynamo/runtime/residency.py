"""Whether a device tensor still holds the values of a host tensor, so that a weight is sent once and not on every call.

A host tensor counts as unchanged only if it is the same Python object over the same storage, address and strides, and PyTorch's version
counter stands where it stood. `.data`, NumPy views, shared memory and other processes write without moving that counter, so the bytes
are looked at too: all of them, against a copy made when they were sent (EXACT, the default: never wrong), or SAMPLES words spread over a
tensor of more than SMALL bytes (VERSION: no copy and next to no time, but a write past the counter to a few elements of a large tensor
goes unseen, and `forget_all` is for those who write so). Copies are shared by all executables, and made only of tensors that came twice
with the same counter: neither activations nor weights in training cost one. In any doubt a tensor is sent again.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

EXACT, VERSION = "exact", "version"
SMALL = 16 << 10
"""Bytes up to which VERSION compares a tensor whole."""
SAMPLES = 64
"""8-byte words of a larger tensor that it compares."""

_every: weakref.WeakSet[Residency] = weakref.WeakSet()
_copies: weakref.WeakValueDictionary[tuple[int, int], _Copy] = weakref.WeakValueDictionary()
"""The latest copy of the bytes at an address, by address and size."""

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def forget_all() -> None:
    """Have every executable send all of its inputs again at its next call.

    To be called, with option `resident="version"`, after writing to a few elements of a large tensor by ways that PyTorch does not count
    (`.data`, NumPy, shared memory); and before `torch.utils.swap_tensors`, which refuses tensors that something refers to weakly, as
    this does to what it has sent.
    """
    for residency in list(_every):
        residency.forget()


class _Copy:
    """The `size` bytes that were at `address`."""

    __slots__ = ("__weakref__", "_address", "_bytes", "_size")

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, size
        self._bytes = torch.empty(size, dtype=torch.uint8)
        ctypes.memmove(self._bytes.data_ptr(), address, size)

    def is_now(self) -> bool:
        return bool(_memcmp(self._address, self._bytes.data_ptr(), self._size) == 0)

    @staticmethod
    def of(address: int, size: int) -> _Copy:
        """The copy that another executable made of the same bytes, else one of its own."""
        copy = _copies.get((address, size))
        if copy is None or not copy.is_now():
            copy = _copies[address, size] = _Copy(address, size)
        return copy


class _Sent:
    """A host tensor as it was when it was sent; it does not keep the tensor alive."""

    __slots__ = ("address", "bytes_now", "content", "copy", "held", "span", "storage", "stride", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, exact: bool) -> None:
        self.held = False
        self.version = tensor._version
        self.tensor = weakref.ref(tensor)
        # As long as this exists, no other storage can come to lie at the same place and be taken for this one.
        self.storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.address, self.stride, self.span = tensor.data_ptr(), tensor.stride(), _span(tensor)
        self.bytes_now = _reader(self.address, self.span)
        self.content = self.bytes_now()
        self.copy = _Copy.of(self.address, self.span) if exact and self.span > SMALL else None

    def is_now(self, tensor: torch.Tensor) -> bool:
        if self.tensor() is not tensor or self.version != tensor._version:
            return False
        storage = tensor.untyped_storage()
        if storage._cdata != self.storage.cdata or tensor.data_ptr() != self.address or tensor.stride() != self.stride:
            return False
        # The storage may have been shrunk under the tensor: then there is nothing to look at.
        room = storage.nbytes() - tensor.storage_offset() * tensor.element_size()
        now = self.span <= room and self.bytes_now() == self.content and (self.copy is None or self.copy.is_now())
        self.held |= now
        return now


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


def _nothing() -> None:
    """A weak reference to nothing."""


class Residency:
    """What one device tensor holds. Not thread-safe: its executable has a lock."""

    __slots__ = ("__weakref__", "_exact", "_seen", "_seen_version", "_sent")

    def __init__(self, exact: bool = True) -> None:
        _every.add(self)
        self._exact = exact
        self._seen: Callable[[], torch.Tensor | None] = _nothing
        self._seen_version = 0
        self._sent: _Sent | None = None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the device tensor has the values of `tensor`."""
        return self._sent is not None and self._sent.is_now(tensor)

    def sending(self, tensor: torch.Tensor) -> _Sent | None:
        """To be called before `tensor` is sent; its result goes to `sent` afterwards, so that a write in between is noticed.

        None the first time that a tensor comes with what it holds now, unless it had stayed unchanged before: an activation never comes
        again, a weight in training never comes unchanged, and to remember them costs more than to forget them.
        """
        before, self._sent = self._sent, None
        if tensor.is_inference() or tensor.is_neg() or tensor.is_conj():  # no version counter; values that the memory does not show
            return None
        came_before = self._seen() is tensor
        unchanged = came_before and self._seen_version == tensor._version
        if not came_before:
            self._seen = weakref.ref(tensor)  # its id would be the next activation's too
        self._seen_version = tensor._version
        stays = unchanged or (before is not None and before.held and before.tensor() is tensor)
        return _Sent(tensor, self._exact) if stays else None

    def sent(self, record: _Sent | None) -> None:
        self._sent = record

    def forget(self) -> None:
        """The device tensor holds something else now, or may."""
        self._sent, self._seen = None, _nothing
