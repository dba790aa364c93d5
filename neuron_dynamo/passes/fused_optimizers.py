"""Decompositions of the steps of optimizers made with fused=True, after aten/src/ATen/native/cpu/Fused{Adam,SGD,Adagrad}Kernel.cpp. PyTorch
has none of its own.

`found_inf` 1 leaves everything as it was; `grad_scale` divides the gradients, which come back divided. float16 and bfloat16 compute in
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neuron_dynamo.lowering.builder import compute_dtype

aten = torch.ops.aten
Lists = tuple[list[Tensor], ...]


def fused_optimizer_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten._fused_adam.default: _adam(decoupled=False),
        aten._fused_adam.tensor_lr: _adam(decoupled=False),
        aten._fused_adamw.default: _adam(decoupled=True),
        aten._fused_adamw.tensor_lr: _adam(decoupled=True),
        aten._fused_sgd.default: fused_sgd,
        aten._fused_sgd.tensor_lr: fused_sgd,
        aten._fused_adagrad.default: fused_adagrad,
        aten._fused_adagrad.tensor_lr: lambda *args, **named: fused_adagrad(*args, **named)[:3],
    }


def _wide(x: Tensor) -> Tensor:
    return x.to(compute_dtype(x.dtype))


class _Gradients:
    """Gradients as the step reads them, and as it leaves them."""

    def __init__(self, grads: Sequence[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None, maximize: bool) -> None:
        self.given = list(grads)
        self.left = [g if grad_scale is None else (_wide(g) / grad_scale).to(g.dtype) for g in grads]
        self.used = [-_wide(g) if maximize else _wide(g) for g in self.left]
        self.skip = None if found_inf is None else found_inf.reshape(()) == 1

    def settle(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> list[Tensor]:
        """What the step leaves of a list: `after` in the dtypes of `before`, or `before` where the step is skipped."""
        rounded = [new.to(old.dtype) for old, new in zip(before, after, strict=True)]
        if self.skip is None:
            return rounded
        return [torch.where(self.skip, old, new) for old, new in zip(before, rounded, strict=True)]


def _complement_of_power(base: float, step: Tensor) -> Tensor:
    """1 - base^step without the cancellation."""
    return -torch.expm1(step * math.log(base)) if base > 0 else torch.ones_like(step)


def _adam(decoupled: bool) -> Callable[..., Lists]:
    """Adam, or AdamW if weight decay is `decoupled` from the gradient."""

    def decomposition(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *,
        lr: float | Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Lists:
        gradients = _Gradients(grads, grad_scale, found_inf, maximize)
        results: Lists = ([], [], [], [])
        for i, grad in enumerate(gradients.used):
            param, step = _wide(params[i]), state_steps[i].reshape(())
            if weight_decay and decoupled:
                param = param - param * (lr * weight_decay)
            elif weight_decay:
                grad = grad + param * weight_decay
            average = torch.lerp(_wide(exp_avgs[i]), grad, 1 - beta1)
            square = _wide(exp_avg_sqs[i]) * beta2 + grad * grad * (1 - beta2)
            largest = torch.maximum(_wide(max_exp_avg_sqs[i]), square) if amsgrad else square
            size = largest.sqrt() / _complement_of_power(beta2, step).sqrt() + eps
            param = param - average / size * (lr / _complement_of_power(beta1, step))
            for result, value in zip(results, (param, average, square, largest), strict=True):
                result.append(value)
        return (
            gradients.settle(params, results[0]),
            gradients.settle(gradients.given, gradients.left),
            gradients.settle(exp_avgs, results[1]),
            gradients.settle(exp_avg_sqs, results[2]),
            gradients.settle(max_exp_avg_sqs, results[3]) if amsgrad else list(max_exp_avg_sqs),
        )

    return decomposition


def fused_sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    gradients = _Gradients(grads, grad_scale, found_inf, maximize)
    after: list[Tensor] = []
    buffers: list[Tensor] = []
    for i, grad in enumerate(gradients.used):
        param = _wide(params[i])
        if weight_decay:
            grad = grad + param * weight_decay
        if momentum:
            buffer = grad if is_first_step else _wide(momentum_buffers[i]) * momentum + grad * (1 - dampening)
            buffers.append(buffer)
            grad = grad + buffer * momentum if nesterov else buffer
        after.append(param - grad * lr)
    left = gradients.settle(momentum_buffers, buffers) if momentum else list(momentum_buffers)
    return gradients.settle(params, after), gradients.settle(gradients.given, gradients.left), left


def fused_adagrad(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    state_sums: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    gradients = _Gradients(grads, grad_scale, found_inf, maximize)
    after: list[Tensor] = []
    sums: list[Tensor] = []
    for i, grad in enumerate(gradients.used):
        param, step = _wide(params[i]), state_steps[i].reshape(())
        if weight_decay:
            grad = grad + param * weight_decay
        total = _wide(state_sums[i]) + grad * grad
        rate = lr / (1 + (step - 1) * lr_decay)
        sums.append(total)
        after.append(param - grad / (total.sqrt() + eps) * rate)
    left = gradients.settle(gradients.given, gradients.left)
    return gradients.settle(params, after), left, gradients.settle(state_sums, sums), list(state_steps)
