"""Decompositions of the fused layers that nn.TransformerEncoderLayer and nn.MultiheadAttention call in inference, after
aten/src/ATen/native/transformers/{transformer,attention}.cpp. PyTorch has none of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

_SOURCE, _PADDING = 0, 1
"""mask_type: a [T, T] mask for every batch entry, or a [B, T] mask of keys. Any other is a mask of full shape [B, heads, T, T]."""


def fused_layer_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten._native_multi_head_attention.default: native_multi_head_attention,
        aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer_fwd,
    }


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, D] as [B, heads, T, D / heads]."""
    batch, steps, width = x.shape
    return x.view(batch, steps, heads, width // heads).transpose(1, 2)


def _project(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """query, key and value projections, [B, T, D] each; inputs that are one tensor share one product."""
    if query is key and key is value:
        return list(F.linear(query, weight, bias).chunk(3, -1))
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    return [F.linear(x, w, b) for x, w, b in parts]


def _excluded(mask: Tensor, mask_type: int | None) -> Tensor:
    """The mask as bool, True where a key is left out, in a shape that broadcasts to [B, heads, T, T].

    A float mask is read as such too: what is not zero is left out, as the fused op does.
    """
    mask = mask if mask.dtype == torch.bool else mask.to(torch.bool)
    return mask[:, None, None, :] if mask_type == _PADDING else mask


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """aten::_native_multi_head_attention on query, key, value [B, T, D]: (output [B, T, D], weights).

    The weights are [B, T, T] averaged or [B, num_head, T, T], and without `need_weights` a tensor of no elements. A row whose keys
    are all masked gives NaN.
    """
    if query.numel() == 0:
        return query.new_empty(query.shape), query.new_empty(0)
    q, k, v = (_split_heads(x, num_head) for x in _project(query, key, value, qkv_weight, qkv_bias))
    if mask is None and not need_weights:
        context = F.scaled_dot_product_attention(q, k, v)
        weights = query.new_empty(0)
    else:
        scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
        if mask is not None:
            scores = scores.masked_fill(_excluded(mask, mask_type), -math.inf)
        weights = torch.softmax(scores, -1)
        context = torch.matmul(weights, v)
    output = F.linear(context.transpose(1, 2).reshape(query.shape), proj_weight, proj_bias)
    if not need_weights:
        weights = query.new_empty(0)
    elif average_attn_weights:
        weights = weights.sum(1) / num_head
    return output, weights


def transformer_encoder_layer_fwd(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """aten::_transformer_encoder_layer_fwd on src [B, T, D]: attention and feed-forward, each with residual and layer norm."""
    if src.numel() == 0:
        return src.clone()

    def attention(x: Tensor) -> Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return native_multi_head_attention(x, x, x, embed_dim, num_heads, *weights, mask, need_weights=False, mask_type=mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def residual(x: Tensor, inner: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor) -> Tensor:
        def norm(y: Tensor) -> Tensor:
            return F.layer_norm(y, [embed_dim], weight, bias, eps)

        return inner(norm(x)) + x if norm_first else norm(inner(x) + x)

    return residual(residual(src, attention, norm_weight_1, norm_bias_1), feed_forward, norm_weight_2, norm_bias_2)
