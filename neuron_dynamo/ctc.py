"""Connectionist temporal classification, made traceable.

The sizes of what PyTorch's `_ctc_loss` returns depend on the numbers in its lengths, so that Dynamo breaks the graph at it. Where
operators are traced by Python's dispatcher, `ctc_loss` is therefore defined as below: the same loss over an op of ours, whose labels and
alphas are padded to a size that is known. lowering/ops/ctc_loss.py lowers the op; its definition here is PyTorch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_library: Any = torch.library.Library("neuron_dynamo", "FRAGMENT")  # type: ignore[no-untyped-call]

_MEAN, _SUM = 1, 2


@functools.cache
def make_ctc_loss_traceable() -> None:
    """Put our definition before PyTorch's where graphs are traced, once a process. Eager PyTorch keeps its own."""
    for op in (aten.ctc_loss.IntList, aten.ctc_loss.Tensor):
        op.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)(ctc_loss)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    """torch.ctc_loss: log_probs [T, N, C] or [T, C]; targets [N, S], or all of them one after another. `reduction` is 0 for none.

    Raises RuntimeError, with lengths in tensors when the graph runs, where the lengths do not fit.
    """
    rows = log_probs if log_probs.ndim == 3 else log_probs.unsqueeze(1)
    steps, batch, classes = rows.shape
    if not rows.numel():
        raise RuntimeError("log_probs tensor must not be empty")
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    taken, given = (torch.as_tensor(n, dtype=torch.int64).reshape(-1) for n in (input_lengths, target_lengths))
    if taken.shape[0] != batch or given.shape[0] != batch:
        raise RuntimeError("input_lengths and target_lengths must be of size batch_size")
    most = max(target_lengths, default=0) if not isinstance(target_lengths, Tensor) else targets.shape[-1]
    _demand(input_lengths, lambda n: (n >= 0) & (n <= steps), f"Expected input_lengths to have values from 0 to {steps}")
    _demand(target_lengths, lambda n: n >= 0, "Expected target_lengths to have value at least 0")
    if targets.ndim == 1:
        count = targets.shape[0]
        what = f"Expected targets, of {count} values, to have as many as the sum of target_lengths"
        total = target_lengths.sum() if isinstance(target_lengths, Tensor) else [sum(target_lengths)]
        _demand(total, lambda n: n == count, what)
        place = (given.cumsum(0) - given).unsqueeze(1) + torch.arange(most)
        labels = targets[place.clamp(max=count - 1)] if count else targets.new_zeros((batch, 0))
    else:
        what = f"Expected targets to have size at least max target_length at dimension 1, but got size {targets.shape[1]}"
        _demand(target_lengths, lambda n: n <= targets.shape[1], what)
        labels = targets[:, :most]
    labels = torch.where(torch.arange(labels.shape[1]) < given.unsqueeze(1), labels.to(torch.int64), blank)
    loss: Tensor = torch.ops.neuron_dynamo.ctc_loss(rows, labels, taken, given, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == float("inf"), 0.0, loss)
    if reduction == _MEAN:
        return (loss / given.clamp(min=1)).mean()
    if reduction == _SUM:
        return loss.sum()
    return loss if log_probs.ndim == 3 else loss.squeeze(0)


def _demand(lengths: Tensor | Sequence[int], holds: Callable[[Any], Any], message: str) -> None:
    """Raise RuntimeError unless `holds` of all lengths: at once where they are numbers, else when the graph runs."""
    if isinstance(lengths, Tensor):
        torch._assert_async(holds(lengths).all(), message)
    elif not all(holds(n) for n in lengths):
        raise RuntimeError(message)


# The op: log_probs [T, N, C]; labels int64[N, S], past the end `blank`; lengths int64[N]. Gives the loss [N] and alpha [N, T, 2 S + 1].

_library.define(
    "ctc_loss(Tensor log_probs, Tensor labels, Tensor input_lengths, Tensor target_lengths, int blank, bool zero_infinity)"
    " -> (Tensor, Tensor)"
)
_library.define(
    "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor labels, Tensor input_lengths, Tensor target_lengths, Tensor loss,"
    " Tensor alpha, int blank, bool zero_infinity) -> Tensor"
)


def _loss(
    log_probs: Tensor, labels: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    loss, alpha = aten._ctc_loss.default(log_probs, labels, input_lengths.tolist(), target_lengths.tolist(), blank, zero_infinity)
    missing = 2 * labels.shape[1] + 1 - alpha.shape[2]
    return loss, torch.nn.functional.pad(alpha, (0, missing), value=-torch.inf)


def _fake_loss(
    log_probs: Tensor, labels: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    if log_probs.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f'"ctc_loss_cpu" not implemented for {log_probs.dtype}')
    steps, batch, _ = log_probs.shape
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * labels.shape[1] + 1))


def _backward(
    grad: Tensor,
    log_probs: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    loss: Tensor,
    alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    lengths = input_lengths.tolist(), target_lengths.tolist()
    alpha = alpha[..., : 2 * max(lengths[1], default=0) + 1]
    gradient: Tensor = aten._ctc_loss_backward.default(grad, log_probs, labels, *lengths, loss, alpha, blank, zero_infinity)
    return gradient.contiguous()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    gradient = torch.ops.neuron_dynamo.ctc_loss_backward(grad, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity)
    return gradient, None, None, None, None, None


_library.impl("ctc_loss", _loss, "CompositeExplicitAutograd")
_library.impl("ctc_loss_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("neuron_dynamo::ctc_loss", _fake_loss, lib=_library)
torch.library.register_fake(
    "neuron_dynamo::ctc_loss_backward", lambda grad, log_probs, *_: torch.empty(log_probs.shape, dtype=log_probs.dtype), lib=_library
)
torch.library.register_autograd("neuron_dynamo::ctc_loss", _differentiate, setup_context=_save, lib=_library)

CTC_LOSS = torch.ops.neuron_dynamo.ctc_loss.default
CTC_LOSS_BACKWARD = torch.ops.neuron_dynamo.ctc_loss_backward.default
