"""Reductions against eager PyTorch: NaN, infinities, ties, empty and 0-d tensors, low precision and integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowering.opcheck import check, check_text

NAN, INF = math.nan, math.inf
FLOATS = torch.tensor([[1.0, NAN, 3.0, NAN], [2.0, 5.0, 5.0, -INF], [INF, INF, -1.0, 0.0], [-0.0, 0.0, -0.0, 0.0]])
INTEGERS = torch.tensor([[3, -7, 3, 9], [2**40, -(2**40), 9, 9]])

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    "sum of bool counts": (lambda x: (x.sum(), x.sum(0)), (FLOATS > 0,)),
    "sum of an empty dim list is over all": (lambda x: x.sum(dim=[]), (torch.randn(3, 4),)),
    "sum keeps dims": (lambda x: x.sum((-1, 0), keepdim=True), (torch.randn(3, 4, 5),)),
    "sum of no elements": (lambda x: (x.sum(0), x.prod(0), x.mean(0)), (torch.empty(0, 3),)),
    "mean to another dtype": (lambda x: x.mean(1, dtype=torch.float64), (torch.randn(3, 4),)),
    "integers do not round": (lambda x: (x.sum(1), x.amax(1), x.argmin(1), x.prod(1)), (INTEGERS,)),
    "0-d": (lambda x: (x.sum(), x.max(0), x.argmax(), x.amin(), x.any(), x.all(-1), x.var()), (torch.tensor(3.0),)),
    "extremes with NaN": (lambda x: (x.amax(1), x.amin(1), x.max(), x.min()), (FLOATS,)),
    "first NaN or first tie wins": (lambda x: (x.max(1), x.min(1), x.argmax(1), x.argmin(1), x.argmax(), x.argmin(0)), (FLOATS,)),
    "extremes of bool": (lambda x: (x.amax(1), x.amin(1), x.max(1), x.min(0)), (FLOATS > 1,)),
    "truth": (lambda x: (x.any(), x.all(), x.any(1), x.all(0), torch.any(x, (0, 1))), (FLOATS,)),
    "truth of bytes stays bytes": (lambda x: (x.any(), x.all(1)), (torch.tensor([[0, 2], [3, 4]], dtype=torch.uint8),)),
    "truth of no elements": (lambda x: (x.any(0), x.all(0)), (torch.empty(0, 2),)),
    "variance": (lambda x: (x.var(1), x.std(0), *torch.var_mean(x, (0, 1)), x.var(1, correction=0)), (torch.randn(3, 40) * 5 + 100,)),
    "variance of one element": (lambda x: (x.var(1), x.var(1, correction=0)), (torch.randn(3, 1),)),
    "complex": (lambda x: (x.sum(0), x.var(1), torch.linalg.vector_norm(x)), (torch.randn(3, 4, dtype=torch.complex64),)),
    "count_nonzero": (lambda x: (x.count_nonzero(), x.count_nonzero(1)), (FLOATS,)),
    "nansum": (lambda x: (x.nansum(), x.nansum(1), torch.nanmean(x, 0)), (FLOATS,)),
    "logsumexp": (lambda x: x.logsumexp(1), (torch.tensor([[-INF, -INF], [1000.0, 1000.0], [INF, 0.0], [NAN, 1.0], [-1000.0, -1000.0]]),)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str) -> None:
    function, tensors = CASES[name]
    check(function, *tensors)


@pytest.mark.parametrize("order", [0, 1, 2, 3.5, -1, INF, -INF])
def test_vector_norm(order: float) -> None:
    check(lambda x: (torch.linalg.vector_norm(x, order), torch.linalg.vector_norm(x, order, dim=1, keepdim=True)), torch.randn(4, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_accumulates_in_float32(dtype: torch.dtype) -> None:
    ones = torch.ones(1, 4096, dtype=dtype)
    assert ones.sum().item() == 4096  # plain bfloat16 accumulation would stop at 256
    check(lambda x: (x.sum(1), x.mean(1), x.sum(1, dtype=torch.float32), x.var(1), x.logsumexp(1)), ones)


def test_a_sum_is_two_ops() -> None:
    text = check_text(lambda x: x.sum(-1), torch.randn(3, 4))
    assert text.count("stablehlo.constant") == 1
    assert text.count("stablehlo.reduce") == 1
    assert text.count("stablehlo.") == 3  # the third is the reduce's own add
