"""Matrix products of eight-bit operands: aten::_scaled_mm, _scaled_mm_v2 (torch.nn.functional.scaled_mm), _int_mm, _weight_int8pack_mm.

The product of the operands as they are is taken in float32 (int32 for integers), scaled, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering

aten = torch.ops.aten
TENSOR_WISE, ROW_WISE = 0, 1


def _scaled(b: Builder, x: Value, y: Value, scales: Sequence[Value], bias: Value | None) -> Value:
    """x [m, k] times y [k, n], times scales that broadcast to [m, n], plus bias [n]."""
    if x.dtype != y.dtype:
        x, y = b.convert(x, torch.float32), b.convert(y, torch.float32)
    result = dot_general(b, x, y, ((1,), (0,)), out_dtype=torch.float32)
    for scale in scales:
        whole = b.reshape(scale, ()) if scale.numel == 1 else scale
        result = b.mul(result, b.expand(b.convert(whole, torch.float32), result.shape))
    if bias is not None:
        result = b.add(result, b.value(bias, torch.float32, result.shape))
    return b.convert(result, b.out.dtype)


def _why_not_scales(x: torch.Tensor, y: torch.Tensor, scales: Sequence[torch.Tensor]) -> str | None:
    fits = all(s.dtype == torch.float32 and s.numel() == 1 for s in scales) or [tuple(s.shape) for s in scales] == [
        (x.shape[0], 1),
        (1, y.shape[1]),
    ]
    return None if fits else "scales that are neither of the whole tensor nor of its rows"


def _scaled_mm_guard(
    x: torch.Tensor,
    y: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: Any = None,
    scale_result: Any = None,
    *_: Any,
    **__: Any,
) -> str | None:
    if scale_result is not None:
        return "scale_result, whose meaning differs between PyTorch's own CPU kernels"
    return _why_not_scales(x, y, [scale_a, scale_b])


@lowering(aten._scaled_mm.default, guard=_scaled_mm_guard)
def scaled_mm(b: Builder, x: Value, y: Value, scale_a: Value, scale_b: Value, bias: Value | None = None, *_: Any, **__: Any) -> Value:
    """x [m, k] float8 times y [k, n] float8, each with one scale, or with scales [m, 1] and [1, n]."""
    return _scaled(b, x, y, (scale_a, scale_b), bias)


def _scaled_mm_v2_guard(
    x: torch.Tensor,
    y: torch.Tensor,
    scale_a: Sequence[torch.Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[torch.Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    *_: Any,
    **__: Any,
) -> str | None:
    if {*recipe_a, *recipe_b} - {TENSOR_WISE, ROW_WISE}:
        return "scales of blocks"
    return _why_not_scales(x, y, [*scale_a, *scale_b])


@lowering(aten._scaled_mm_v2.default, guard=_scaled_mm_v2_guard)
def scaled_mm_v2(
    b: Builder,
    x: Value,
    y: Value,
    scale_a: Sequence[Value],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Value],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Value | None,
    *_: Any,
    **__: Any,
) -> Value:
    """The same with lists of scales and how each applies."""
    return _scaled(b, x, y, (*scale_a, *scale_b), bias)


@lowering(aten._int_mm.default)
def int_mm(b: Builder, x: Value, y: Value) -> Value:
    """int8 [m, k] times int8 [k, n], exact in int32."""
    return dot_general(b, x, y, ((1,), (0,)), out_dtype=torch.int32)


@lowering(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(b: Builder, x: Value, weight: Value, scales: Value) -> Value:
    """x [m, k] floating point times weight [n, k] int8, each of the n columns times its scale."""
    wide = [b.convert(v, torch.float32) for v in (x, weight, scales)]
    product = dot_general(b, wide[0], wide[1], ((1,), (1,)))
    return b.convert(b.mul(product, b.expand(wide[2], product.shape)), b.out.dtype)
