"""Decompositions of the ops behind torch.nn.functional.linear_cross_entropy with options (torch/nn/modules/linear_cross_entropy.py).

Those go through the batch in chunks, so as never to hold all logits; here the closed form stands, and what is held is the compiler's
affair. All is computed in float32 at least, whatever the accumulation policy, and rounded once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def linear_cross_entropy_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    importlib.import_module("torch.nn.modules.linear_cross_entropy")  # which defines the ops
    ops = torch.ops.torch_nn
    return {
        ops._linear_cross_entropy_batch_chunked.default: reduced,
        ops._linear_cross_entropy_batch_chunked_no_reduction.default: unreduced,
    }


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def _logits(x: Tensor, linear_weight: Tensor, bias: Tensor | None) -> Tensor:
    """[N, C], less each row's largest."""
    logits = _wide(x) @ _wide(linear_weight).T.to(_wide(x).dtype)
    logits = logits if bias is None else logits + bias.to(logits.dtype)
    return logits - logits.amax(1, keepdim=True)


def _rows(target: Tensor, weight: Tensor | None, ignore_index: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """(a class [N, 1] that can be looked up, the weight [N] of each row)."""
    ignored = target == ignore_index
    label = target if 0 <= ignore_index < like.shape[1] else torch.where(ignored, 0, target)
    weights = torch.ones((), dtype=like.dtype) if weight is None else weight.to(like.dtype)[label]
    return label.unsqueeze(1), torch.where(ignored, 0, weights)


def unreduced(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
) -> Tensor:
    """Loss [N] of x [N, F] under linear_weight [C, F], bias [C] and class weights [C]."""
    logits = _logits(x, linear_weight, bias)
    label, weights = _rows(target, weight, ignore_index, logits)
    loss = logits.exp().sum(1).log() - logits.gather(1, label).squeeze(1)
    return (loss * weights).to(x.dtype)


def reduced(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    allow_retain_graph: bool,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The summed or mean loss, and its gradients by x, linear_weight and bias where asked for (else empty)."""
    logits = _logits(x, linear_weight, bias)
    label, weights = _rows(target, weight, ignore_index, logits)
    if reduction == "mean":
        count = weights.sum()
        weights = weights / torch.where(count == 0, torch.nan, count)
    exponential = logits.exp()
    total = exponential.sum(1, keepdim=True)
    loss = (weights * (total.log() - logits.gather(1, label)).squeeze(1)).sum()
    if reduction == "mean" and not x.shape[0]:
        loss = torch.full_like(loss, torch.nan)
    chosen = torch.arange(logits.shape[1], device=x.device) == label
    slope = (exponential / total - chosen.to(logits.dtype)) * weights.unsqueeze(1)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=x.dtype, device=x.device)

    by_x = (slope @ _wide(linear_weight).to(slope.dtype)).to(x.dtype) if compute_input_grad else empty(0, 0)
    by_weight = (slope.T @ _wide(x)).to(x.dtype) if compute_linear_weight_grad else empty(0, 0)
    by_bias = slope.sum(0).to(x.dtype) if compute_linear_bias_grad else empty(0)
    return loss.to(x.dtype), by_x, by_weight, by_bias
