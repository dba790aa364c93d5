"""Decompositions of the multi-label margin loss and of the gradients of it and the multi-class one, after
aten/src/ATen/native/LossMulti{Margin,LabelMargin}.cpp.

PyTorch's own decomposition of the former is wrong where a row's first label is -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_NONE, _MEAN = 0, 1


def margin_loss_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
        aten.multilabel_margin_loss_forward.default: multilabel_margin_loss_forward,
        aten.multilabel_margin_loss_backward.default: multilabel_margin_loss_backward,
    }


def _rows(x: Tensor) -> Tensor:
    """x as [N, C]."""
    return x.reshape(1, -1) if x.ndim < 2 else x


def _slope(grad: Tensor, rows: Tensor, reduction: int) -> Tensor:
    """Gradient that reaches each row's sum over classes: [N, 1] or 0-d."""
    scale = rows.shape[1] * (rows.shape[0] if reduction == _MEAN else 1)
    return (grad.reshape(-1, 1) if reduction == _NONE and grad.ndim else grad.reshape(())) / scale


def multi_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, p: int | float, margin: int | float, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    """x [N, C] or [C]; target [N] or 0-d holds the right class of each row."""
    if not x.numel():
        return torch.zeros_like(x)
    rows, label = _rows(x), target.reshape(-1, 1)
    chosen = torch.arange(rows.shape[1], device=x.device) == label
    excess = margin - rows.gather(1, label) + rows
    slope = _slope(grad, rows, reduction) * (1 if p == 1 else 2 * excess)
    if weight is not None:
        slope = slope * weight[label]
    slope = torch.where((excess > 0) & ~chosen, slope, 0).expand(rows.shape)
    return torch.where(chosen, -slope.sum(1, keepdim=True), slope).reshape(x.shape).to(x.dtype)


def _label_excess(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(1 - x[label] + x[class] as [N, label, class], which labels come before the first negative one, their classes or 0)."""
    listed = (labels < 0).long().cumsum(1) == 0
    place = torch.where(listed, labels, 0)
    return 1 - rows.gather(1, place).unsqueeze(2) + rows.unsqueeze(1), listed, place


def multilabel_margin_loss_forward(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """(loss, is_target): x and target [N, C] or [C]; each row's labels are target's entries before the first negative one."""
    rows, labels = _rows(x), _rows(target)
    excess, listed, place = _label_excess(rows, labels)
    classes = torch.arange(rows.shape[1], device=x.device)
    is_label = ((place.unsqueeze(2) == classes) & listed.unsqueeze(2)).any(1)
    counted = listed.unsqueeze(2) & ~is_label.unsqueeze(1)
    loss = torch.where(counted, excess.clamp_min(0), 0).sum((1, 2)) / max(rows.shape[1], 1)
    if reduction == _MEAN:
        loss = loss.mean()
    elif reduction != _NONE or x.ndim < 2:
        loss = loss.sum()
    return loss.to(x.dtype), is_label.to(x.dtype).reshape(target.shape)


def multilabel_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    """x, target and is_target [N, C] or [C]."""
    if not x.numel():
        return torch.zeros_like(x)
    rows, labels, is_label = _rows(x), _rows(target), _rows(is_target)
    excess, listed, place = _label_excess(rows, labels)
    active = (excess > 0) & listed.unsqueeze(2) & (is_label == 0).unsqueeze(1)
    slope = torch.where(active, _slope(grad, rows, reduction).reshape(-1, 1, 1), 0)
    return slope.sum(1).scatter_add(1, place, -slope.sum(2)).reshape(x.shape).to(x.dtype)
