"""ctc_loss and its gradient against eager PyTorch's: lengths as numbers and as tensors, rows without steps, labels or a path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import neuron_dynamo
from neuron_dynamo.ctc import ctc_loss
from tests.lowering.opcheck import check
from tests.lowering.targets import text_for

NONE, MEAN, SUM = range(3)


def _log_probs(steps: int = 9) -> torch.Tensor:
    return torch.randn(steps, 3, 5, generator=torch.Generator().manual_seed(1)).log_softmax(-1)


LABELS = torch.tensor([[1, 1, 2, 4], [2, 1, 3, 3], [3, 1, 4, 4]])
ALL_LABELS = torch.tensor([0, 0, 3, 2, 1, 0, 3])


def _losses(function: Callable[..., torch.Tensor], x: torch.Tensor, labels: torch.Tensor, taken: Any, given: Any) -> list[torch.Tensor]:
    """Losses and the gradient of each."""
    x = x.detach().requires_grad_()
    steps = x.shape[0]
    losses = [
        function(x, labels, taken, given, 0, NONE),
        function(x, labels, taken, given, 0, MEAN, True),
        function(x, ALL_LABELS, [steps, 4, 5], [3, 1, 3], 4, SUM),
        function(x[:, 0], labels[0, :0], (steps,), (0,), 0, NONE),
    ]
    return [*losses, *(torch.autograd.grad(loss, x, 1.5 * torch.ones_like(loss))[0] for loss in losses)]


def _check(x: torch.Tensor, taken: Any, given: Any) -> None:
    """Our definition lowered against itself, and it against PyTorch's."""
    ours, theirs = (_losses(function, x, LABELS, taken, given) for function in (ctc_loss, torch.ctc_loss))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    check(lambda *args: _losses(ctc_loss, *args), x, LABELS, taken, given)


def test_lengths_as_tensors() -> None:
    """The last row has no path, by which `none` is infinite and its gradient NaN; equal labels take a blank between them."""
    _check(_log_probs(), torch.tensor([9, 5, 3]), torch.tensor([4, 2, 4]))


def test_lengths_as_numbers_and_a_class_of_probability_zero() -> None:
    x = _log_probs().double()
    x[2, :, 3] = -torch.inf
    _check(x, [9, 6, 0], [4, 0, 1])


def test_written_out_where_a_target_takes_no_loops() -> None:
    def both(x: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        loss = ctc_loss(x, labels, [4, 3, 4], [2, 1, 0], zero_infinity=True)
        return [loss, torch.autograd.grad(loss, x)[0]]

    text = text_for("trn2", both, _log_probs(4), LABELS)
    assert "stablehlo.while" not in text


def test_whole_graph_and_lengths_that_do_not_fit() -> None:
    compiled = torch.compile(F.ctc_loss, backend="neuron", fullgraph=True)
    x, taken, given = _log_probs(), torch.tensor([9, 5, 7]), torch.tensor([4, 2, 4])
    torch.testing.assert_close(compiled(x, LABELS, taken, given), F.ctc_loss(x, LABELS, taken, given))
    (graph,) = neuron_dynamo.reports()[-1:]
    assert not [op for op in graph.ops if op.placement == "host"]
    with pytest.raises(RuntimeError, match="input_lengths"):
        compiled(x, LABELS, taken + 1, given)
    with pytest.raises(RuntimeError, match="target"):
        compiled(x, LABELS, taken, given + 1)
    with pytest.raises(RuntimeError, match="must not be empty"):
        compiled(x[:, :0], LABELS[:0], taken[:0], given[:0])
