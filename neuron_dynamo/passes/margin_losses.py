"""Decompositions of the multi-class and multi-label margin losses and of their gradients, and of the soft margin loss's gradient, after
aten/src/ATen/native/LossMulti{Margin,LabelMargin}.cpp and Loss.cpp: what is no more than 0, as NaN is not, does not count.

Of PyTorch's own decompositions, that of the multi-label loss counts entries after a row's first -1, and that of the soft one's gradient
takes 1 from a sigmoid, so that nothing is left of it where the margin is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype

aten = torch.ops.aten

_NONE, _MEAN = 0, 1


def margin_loss_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten.multi_margin_loss.default: multi_margin_loss,
        aten.multi_margin_loss_backward.default: multi_margin_loss_backward,
        aten.multilabel_margin_loss_forward.default: multilabel_margin_loss_forward,
        aten.multilabel_margin_loss_backward.default: multilabel_margin_loss_backward,
        aten.soft_margin_loss_backward.default: soft_margin_loss_backward,
    }


def _rows(x: Tensor) -> Tensor:
    """x as [N, C]."""
    return x.reshape(1, -1) if x.ndim < 2 else x


def _slope(grad: Tensor, rows: Tensor, reduction: int) -> Tensor:
    """Gradient that reaches each row's sum over classes: [N, 1] or 0-d."""
    scale = rows.shape[1] * (rows.shape[0] if reduction == _MEAN else 1)
    return (grad.reshape(-1, 1) if reduction == _NONE and grad.ndim else grad.reshape(())) / scale


def multi_margin_loss(
    x: Tensor, target: Tensor, p: int | float = 1, margin: int | float = 1, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    """x [N, C] or [C]; target [N] or 0-d holds the right class of each row."""
    rows, label = _rows(x), target.reshape(-1, 1)
    excess = margin - rows.gather(1, label) + rows
    counted = (excess > 0) & (torch.arange(rows.shape[1], device=x.device) != label)
    loss = excess if p == 1 else excess * excess
    if weight is not None:
        loss = loss * weight[label]
    return _reduced(torch.where(counted, loss, 0).sum(1), x, reduction)


def _reduced(sums: Tensor, x: Tensor, reduction: int) -> Tensor:
    """The loss of x, [N, C] or [C], from the sums over the classes of its rows."""
    loss = sums / max(x.shape[-1] if x.ndim else 1, 1)
    if reduction == _MEAN:
        loss = loss.mean()
    elif reduction != _NONE or x.ndim < 2:
        loss = loss.sum()
    return loss.to(x.dtype)


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
    counted = (excess > 0) & listed.unsqueeze(2) & ~is_label.unsqueeze(1)
    return _reduced(torch.where(counted, excess, 0).sum((1, 2)), x, reduction), is_label.to(x.dtype).reshape(target.shape)


def multilabel_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    """x, target and is_target [N, C] or [C]."""
    if not x.numel():
        return torch.zeros_like(x)
    rows, labels, is_label = _rows(x), _rows(target), _rows(is_target)
    excess, listed, place = _label_excess(rows, labels)
    active = (excess > 0) & listed.unsqueeze(2) & (is_label == 0).unsqueeze(1)
    slope = torch.where(active, _slope(grad, rows, reduction).reshape(-1, 1, 1), 0)
    return slope.sum(1).scatter_add(1, place, -slope.sum(2)).reshape(x.shape).to(x.dtype)


def soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """The gradient of log(1 + exp(-target * x)), all of one shape but for grad, which may be 0-d."""
    kind = get_computation_dtype(x.dtype)
    away = -target.to(kind)
    slope = away * torch.sigmoid(away * x.to(kind)) * grad.to(kind)
    if reduction == _MEAN:
        slope = slope / x.numel()
    return slope.to(x.dtype)
