"""Definitions of PyTorch's that graphs would be traced with, set aside where rules of ours are nearer to eager.

Some of PyTorch's decompositions stand before autograd, so that no backend sees the op, nor can say how it is differentiated. A few of
them give other numbers than the op: multilabel_margin_loss counts classes for entries after the first -1, the linear upsamplings make
NaN of an infinity beside a finite number, softshrink rounds its limit to 16 bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

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


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Trace with the ops themselves and PyTorch's gradients of them; Dynamo's lock keeps other compilations out meanwhile."""
    found = [(op, key, op.py_kernels.pop(key)) for op in _OPS for key in _KEYS if key in op.py_kernels]
    _forget_choices()
    try:
        yield
    finally:
        for op, key, definition in found:
            op.py_kernels[key] = definition
        _forget_choices()


def _forget_choices() -> None:
    for op in _OPS:
        op._dispatch_cache.clear()
