"""Attention of jagged nested tensors on the CPU, made traceable.

For CPU tensors PyTorch's own definition goes through the strided layout, which has no fake tensors, so that no backend could compile it.
While a graph is traced, and only where PyTorch would choose that definition, attention over padded rows takes its place. Eager PyTorch
keeps its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend


def make_attention_traceable() -> None:
    """Put our definition before PyTorch's, once a process."""
    ops: Any = importlib.import_module("torch.nested._internal.ops")
    if not isinstance(ops.jagged_scaled_dot_product_attention, _Attention):
        ops.jagged_scaled_dot_product_attention = _Attention(ops.jagged_scaled_dot_product_attention)


class _Attention:
    """Takes what torch.nn.functional.scaled_dot_product_attention takes; `eager` is PyTorch's own for jagged tensors."""

    def __init__(self, eager: Callable[..., Tensor]) -> None:
        self._eager = eager

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        tracing = torch._guards.TracingContext.try_get() is not None
        if tracing and attn_mask is None and not is_causal and not enable_gqa and all(map(_is_plain, (query, key, value))):
            sdpa = importlib.import_module("torch.nested._internal.sdpa")
            chosen = sdpa._select_sdp_backend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
            if chosen == SDPBackend.MATH:
                return _over_padded_rows(query, key, value, dropout_p, scale)
        return self._eager(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _is_plain(x: Any) -> bool:
    """[batch, heads, jagged, width] on the CPU, rows without holes, and a longest length that is known without a look at data."""
    return (
        x.is_nested
        and x.layout == torch.jagged
        and x.device.type == "cpu"
        and x.dim() == 4
        and x._ragged_idx == 2
        and x.lengths() is None
        and x._maybe_max_seqlen is not None
    )


def _over_padded_rows(query: Any, key: Any, value: Any, dropout_p: float, scale: float | None) -> Tensor:
    from torch.nested._internal.nested_tensor import nested_view_from_values_offsets

    def padded(x: Any) -> tuple[Tensor, Tensor]:
        """[batch, heads, longest, width], and which of [batch, longest] are no padding. By plain indexing, which has derivatives."""
        rows, offsets = x.transpose(1, 2).values(), x.offsets()
        where = offsets[:-1, None] + torch.arange(x._maybe_max_seqlen)
        inside = where < offsets[1:, None]
        filled = rows[torch.where(inside, where, 0)]
        return torch.where(inside[:, :, None, None], filled, 0.0).transpose(1, 2), inside

    (q, _), (k, inside), (v, _) = map(padded, (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=inside[:, None, None], dropout_p=dropout_p, scale=scale)
    offsets = query.offsets()
    position = torch.arange(query.transpose(1, 2).values().shape[0])
    row = (position[:, None] >= offsets[1:]).sum(1)
    rows = out.transpose(1, 2)[row, position - offsets[row]]
    nested: Tensor = nested_view_from_values_offsets(  # type: ignore[no-untyped-call]
        rows, offsets, min_seqlen=query._maybe_min_seqlen, max_seqlen=query._maybe_max_seqlen
    )
    return nested.transpose(1, 2)
