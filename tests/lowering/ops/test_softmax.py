"""Softmax and log-softmax against eager PyTorch, forward and backward."""

from __future__ import annotations

import math
import re

import pytest
import torch

from tests.lowering.opcheck import check, check_text

aten = torch.ops.aten
INF = math.inf


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_along_a_dim(function: object, dim: int) -> None:
    check(lambda x: function(x, dim), torch.randn(3, 5, 4) * 30)  # type: ignore[operator]


def test_infinities_and_nan() -> None:
    x = torch.tensor([[-INF, -INF, -INF], [-INF, 0.0, 1.0], [INF, 0.0, 1.0], [math.nan, 0.0, 1.0], [1e30, -1e30, 1e30]])
    check(lambda x: (x.softmax(1), x.log_softmax(1)), x)


def test_scalars_and_empty() -> None:
    check(lambda x: (x.softmax(0), x.log_softmax(0)), torch.tensor(3.0))
    check(lambda x: (x.softmax(1), x.softmax(0)), torch.empty(0, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: (x.softmax(1), x.log_softmax(1), x.softmax(1, dtype=torch.float32)), torch.randn(4, 9).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients(dtype: torch.dtype) -> None:
    grad, x = torch.randn(4, 9).to(dtype), torch.randn(4, 9).to(dtype)
    check(lambda g, y: aten._softmax_backward_data(g, y, 1, dtype), grad, x.softmax(1))
    check(lambda g, y: aten._log_softmax_backward_data(g, y, 1, dtype), grad, x.log_softmax(1))


def test_program_size() -> None:
    text = check_text(lambda x: x.softmax(-1), torch.randn(2, 3, 4))
    assert len(re.findall(r"= (?:\")?stablehlo\.", text)) <= 10
