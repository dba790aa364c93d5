"""Scaled dot-product attention, forward and backward, after ATen's CPU flash kernel (FlashAttention-2, Dao 2023, without tiling).

Scores and softmax are float32 for float16 and bfloat16; the probabilities are rounded to the input dtype before the second product
and normalised after it, as the kernel does. A row that the mask excludes altogether gives zeros and logsumexp 0.
"""

from __future__ import annotations

import math

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce, spread

aten = torch.ops.aten


def _grouped(b: Builder, x: Value, heads: int) -> Value:
    """[B, Hq, S, D] as [B, heads, Hq/heads * S, D]: query heads that share a key head become rows of one product."""
    batch, query_heads, rows, width = x.shape
    return x if query_heads == heads else b.reshape(x, (batch, heads, query_heads // heads * rows, width))


def _scores(b: Builder, query: Value, key: Value, is_causal: bool, mask: Value | None, scale: float | None) -> Value:
    """query key^T * scale + mask, [B, Hq, S, T] in compute dtype; excluded positions are -inf."""
    batch, query_heads, rows, width = query.shape
    columns = key.shape[2]
    wide = compute_dtype(query.dtype)
    product = dot_general(b, _grouped(b, query, key.shape[1]), key, ((3,), (3,)), ((0, 1), (0, 1)), wide)
    product = b.reshape(product, (batch, query_heads, rows, columns))
    factor = 1 / math.sqrt(width) if scale is None else scale
    if factor != 1:
        product = b.mul(product, b.like(product, factor))
    if mask is not None:
        if mask.dtype == torch.bool:
            product = b.select(b.expand(mask, product.shape), product, b.like(product, -math.inf))
        else:
            product = b.add(product, b.value(mask, wide, product.shape))
    if is_causal:
        shape = (rows, columns)
        keep = b.compare("GE", b.iota(shape, 0, torch.int32), b.iota(shape, 1, torch.int32))
        product = b.select(b.expand(keep, product.shape), product, b.like(product, -math.inf))
    return product


def _probabilities_times(b: Builder, probabilities: Value, value: Value, wide: torch.dtype) -> Value:
    """[B, Hq, S, T] x [B, Hk, T, D] -> [B, Hq, S, D]."""
    batch, query_heads, rows, _ = probabilities.shape
    product = dot_general(b, _grouped(b, probabilities, value.shape[1]), value, ((3,), (2,)), ((0, 1), (0, 1)), wide)
    return b.reshape(product, (batch, query_heads, rows, value.shape[3]))


@lowering(aten._scaled_dot_product_flash_attention_for_cpu.default, guard=lambda *args, dropout_p=0.0, **kwargs: _dropout(*args))
def flash_attention(
    b: Builder,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    scores = _scores(b, query, key, is_causal, attn_mask, scale)
    top = reduce(b, scores, (3,), "max")
    if attn_mask is not None:
        top = b.select(b.compare("EQ", top, b.like(top, -math.inf)), b.like(top, 0), top)
    weights = b.unary("exponential", b.sub(scores, spread(b, top, scores.shape, (3,))))
    total = reduce(b, weights, (3,), "add")
    if attn_mask is not None:
        total = b.select(b.compare("EQ", total, b.like(total, 0)), b.like(total, 1), total)
    product = _probabilities_times(b, b.convert(weights, query.dtype), value, scores.dtype)
    result = b.div(product, spread(b, total, product.shape, (3,)))
    logsumexp = b.add(top, b.unary("log", total))
    spec = b.outs[1]
    return b.convert(result, query.dtype), b.convert(logsumexp, spec.dtype if spec else logsumexp.dtype)


def _dropout(*args: object) -> str | None:
    return "attention dropout inside the fused op" if len(args) > 3 and args[3] else None


@lowering(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_backward(
    b: Builder,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    """P = exp(scores - logsumexp); dS = P * (dO V^T - rowsum(dO * O)) * scale; dQ = dS K, dK = dS^T Q, dV = P^T dO."""
    wide = compute_dtype(query.dtype)
    heads = key.shape[1]
    scores = _scores(b, query, key, is_causal, attn_mask, scale)
    weights = b.unary("exponential", b.sub(scores, spread(b, b.convert(logsumexp, wide), scores.shape, (3,))))
    row = reduce(b, b.mul(b.convert(grad, wide), b.convert(out, wide)), (3,), "add")
    upstream = dot_general(b, _grouped(b, grad, heads), value, ((3,), (3,)), ((0, 1), (0, 1)), wide)
    upstream = b.reshape(upstream, scores.shape)
    slope = b.mul(weights, b.sub(upstream, spread(b, row, scores.shape, (3,))))
    factor = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    if factor != 1:
        slope = b.mul(slope, b.like(slope, factor))
    slope, weights = b.convert(slope, query.dtype), b.convert(weights, query.dtype)
    by_rows = ((2,), (2,)), ((0, 1), (0, 1))
    d_query = _probabilities_times(b, slope, key, wide)
    d_key = dot_general(b, _grouped(b, slope, heads), _grouped(b, query, heads), *by_rows, wide)
    d_value = dot_general(b, _grouped(b, weights, heads), _grouped(b, grad, heads), *by_rows, wide)
    return b.convert(d_query, query.dtype), b.convert(d_key, key.dtype), b.convert(d_value, value.dtype)
