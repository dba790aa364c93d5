"""Cumulative ops as one reduce_window, which XLA rewrites into a blocked scan, or in log2(n) steps elsewhere.

Definitions: PyTorch's documentation of each op.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from neuron_dynamo.lowering.builder import Builder, Value, accurate_dtype, compute_dtype
from neuron_dynamo.lowering.combining import running
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import COMBINERS, identity, reduce_window

aten = torch.ops.aten


def scan(b: Builder, x: Value, dim: int, kind: str) -> Value:
    """Inclusive scan along a non-negative dim with a combiner of structured.COMBINERS; x's shape and dtype."""
    if x.numel == 0 or x.shape[dim] == 1:
        return x
    if not b.target.is_host:  # other compilers would spend on each element what its whole row costs
        (result,) = running(b, [x], [identity(kind, x.dtype)], dim, lambda left, right: [COMBINERS[kind](b, left[0], right[0])])
        return result
    window, padding = [1] * x.ndim, [(0, 0)] * x.ndim
    window[dim], padding[dim] = x.shape[dim], (x.shape[dim] - 1, 0)
    return reduce_window(b, x, kind, identity(kind, x.dtype), window=window, strides=[1] * x.ndim, padding=padding)


def _scanned(kind: str) -> Callable[..., Value]:
    def rule(b: Builder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
        # Gradients are exponentials of a logcumsumexp, which make relative errors of its absolute ones.
        wide = b.convert(x, accurate_dtype(b.out.dtype, b.target) if kind == "logaddexp" else compute_dtype(b.out.dtype))
        return b.convert(wide if x.ndim == 0 else scan(b, wide, dim % x.ndim, kind), b.out.dtype)

    return rule


lowering(aten.cumsum.default)(_scanned("add"))
lowering(aten.cumprod.default)(_scanned("mul"))
lowering(aten._logcumsumexp.default, aten.logcumsumexp.default)(_scanned("logaddexp"))


def _extreme(kind: str) -> Callable[..., tuple[Value, Value]]:
    def rule(b: Builder, x: Value, dim: int) -> tuple[Value, Value]:
        """(running extreme, index of the latest element that equals it). NaN wins, the latest one."""
        if x.ndim == 0:
            return x, b.full((), 0, torch.int64)
        dim %= x.ndim
        combiner = {"max": "or", "min": "and"}[kind] if x.dtype == torch.bool else kind
        extreme = scan(b, x, dim, combiner)
        hit = b.compare("EQ", x, extreme)
        if x.dtype.is_floating_point:
            hit = b.binary("or", hit, b.is_nan(x))
        latest = b.select(hit, b.iota(x.shape, dim, torch.int32), b.full(x.shape, -1, torch.int32))
        return extreme, b.convert(scan(b, latest, dim, "max"), torch.int64)

    return rule


lowering(aten.cummax.default)(_extreme("max"))
lowering(aten.cummin.default)(_extreme("min"))
