"""Definitions of PyTorch's that graphs would be traced with, set aside where rules of ours are nearer to eager.

Some of PyTorch's decompositions stand before autograd, so that no backend sees the op, nor can say how it is differentiated. A few of
them give other numbers than the op: multilabel_margin_loss counts classes for entries after the first -1, the linear upsamplings make
NaN of an infinity beside a finite number, softshrink rounds its limit to 16 bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._decomp.decompositions import upsample_compute_output_size
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_impls import get_fast_op_impls

aten = torch.ops.aten

_RESIZED = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
_RESIZED_WITHOUT_ALIASING = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
_OPS: tuple[Any, ...] = (
    aten.multi_margin_loss.default,
    aten.multilabel_margin_loss_forward.default,
    aten.softshrink.default,
    *(getattr(getattr(aten, name), overload) for name in (*_RESIZED, *_RESIZED_WITHOUT_ALIASING) for overload in ("default", "vec")),
)
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)


def _unpacked(name: str) -> Any:
    """`name`.vec by `name`.default, as C++ has it, but for symbolic sizes too."""

    def vec(x: Any, output_size: Sequence[Any] | None, align_corners: bool, factors: Sequence[float] | None) -> Any:
        sizes = upsample_compute_output_size(x.shape, output_size, factors)  # type: ignore[no-untyped-call]
        scales = [None] * len(sizes) if factors is None else factors
        return getattr(aten, name).default(x, sizes, align_corners, *scales)

    return vec


# What the ops make of fake tensors of symbolic sizes. C++ knows it of numbers only: it raises, or makes numbers of the sizes.


def _resized(mode: FakeTensorMode, x: FakeTensor, output_size: Sequence[Any], *_: Any) -> torch.Tensor:
    return _empty(mode, x, [*x.shape[:2], *output_size])


def _resized_backward(mode: FakeTensorMode, grad: FakeTensor, _: Any, input_size: Sequence[Any], *__: Any) -> torch.Tensor:
    return _empty(mode, grad, input_size)


def _shrunk(mode: FakeTensorMode, x: FakeTensor, *_: Any) -> torch.Tensor:
    with mode:
        return torch.empty_like(x)


def _shrunk_backward(mode: FakeTensorMode, grad: FakeTensor, x: FakeTensor, *_: Any) -> torch.Tensor:
    with mode:
        return grad + x  # of the strides that any op of the two has


def _empty(mode: FakeTensorMode, like: FakeTensor, sizes: Sequence[Any]) -> torch.Tensor:
    with mode:
        return torch.empty(sizes, dtype=like.dtype, device=like.device, memory_format=suggest_memory_format(like))


_UNPACKED = {getattr(aten, name).vec: _unpacked(name) for name in (*_RESIZED, *_RESIZED_WITHOUT_ALIASING)}
_SYMBOLIC: dict[Any, Any] = {
    aten.softshrink.default: _shrunk,
    aten.softshrink_backward.default: _shrunk_backward,
    **{getattr(aten, name).default: _resized for name in (*_RESIZED, *_RESIZED_WITHOUT_ALIASING)},
    **{getattr(aten, f"{name}_backward").default: _resized_backward for name in (*_RESIZED, *_RESIZED_WITHOUT_ALIASING)},
}


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Trace with the ops themselves and PyTorch's gradients of them; Dynamo's lock keeps other compilations out meanwhile."""
    found = [(op, key, op.py_kernels.pop(key)) for op in _OPS for key in _KEYS if key in op.py_kernels]
    for op, definition in _UNPACKED.items():
        op.py_kernels[torch._C.DispatchKey.CompositeImplicitAutograd] = definition
    fakes = get_fast_op_impls()
    before = {op: fakes[op] for op in _SYMBOLIC if op in fakes}
    fakes.update(_SYMBOLIC)
    _forget_choices()
    try:
        yield
    finally:
        for op in _SYMBOLIC:
            del fakes[op]
        fakes.update(before)
        for op in _UNPACKED:
            del op.py_kernels[torch._C.DispatchKey.CompositeImplicitAutograd]
        for op, key, definition in found:
            op.py_kernels[key] = definition
        _forget_choices()


def _forget_choices() -> None:
    for op in _OPS:
        op._dispatch_cache.clear()
