"""The closed form of linear_cross_entropy's chunked ops against PyTorch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from neuron_dynamo.passes.linear_cross_entropy import linear_cross_entropy_decompositions, reduced, unreduced

CHUNKED, CHUNKED_NONE = linear_cross_entropy_decompositions()


def _case(dtype: torch.dtype, weighted: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    target = torch.tensor([0, 4, 2, 2, -100, 1, 4])
    tensors = [torch.randn(7, 6).to(dtype), torch.randn(5, 6).to(dtype), torch.randn(5).to(dtype), torch.rand(5).to(dtype)]
    return tensors[0], tensors[1], target, tensors[2] if weighted else None, tensors[3] if weighted else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_loss_and_gradients(dtype: torch.dtype, weighted: bool, ignore_index: int) -> None:
    """In bfloat16, where PyTorch's rounds once a chunk, against its float64 result."""

    def exactly(op: Any, *args: Any) -> Any:
        if dtype != torch.bfloat16:
            return op(*args)
        widened = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else torch.float64 if a is wide else a for a in args]
        return pytree.tree_map(lambda t: t.to(dtype), op(*widened))

    *tensors, weight = _case(dtype, weighted)
    tensors[2] = tensors[2].where(tensors[2] >= 0, ignore_index)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for reduction in ("mean", "sum"):
        args = (*tensors, weight, reduction, ignore_index, 0.0, 3, "keep", wide, True, True, True, weighted)
        torch.testing.assert_close(reduced(*args), exactly(CHUNKED, *args))
    args = (*tensors, weight, ignore_index, 3, "keep", wide)
    torch.testing.assert_close(unreduced(*args), exactly(CHUNKED_NONE, *args))


def test_rows_that_are_none_or_all_ignored() -> None:
    x, linear_weight, target, _, _ = _case(torch.float32, False)
    for rows, labels in ((x[:0], target[:0]), (x, torch.full((7,), -100))):
        args = (rows, linear_weight, labels, None, None, "mean", -100, 0.0, 3, "keep", torch.float32, True, True, True, False)
        torch.testing.assert_close(reduced(*args), CHUNKED(*args), equal_nan=True)
