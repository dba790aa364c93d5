"""Cumulative ops against eager PyTorch: ties, NaN, dtypes, shapes, and that work does not grow with the square."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.opcheck import check

TIES = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, math.nan, 5.0, math.nan], [0.0, -0.0, -math.inf, 0.0, math.inf, math.inf, 1.0, 2.0]])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sums_and_products(dim: int) -> None:
    check(lambda x: (x.cumsum(dim), x.cumprod(dim)), torch.randn(3, 37, 4))


def test_extremes_take_the_latest_of_ties_and_nan() -> None:
    check(lambda x: (x.cummax(1), x.cummin(1), x.cummax(0)), TIES)
    check(lambda x: (x.cummax(0), x.cummin(0)), torch.tensor([3, 1, 3, 2, 5, 1]))
    check(lambda x: (x.cummax(0), x.cummin(0)), torch.tensor([False, True, False, True]))


def test_logcumsumexp() -> None:
    x = torch.tensor([[-math.inf, -math.inf, 0.0, 1.0], [1000.0, 1000.0, -5.0, math.inf], [-1e4, 1e4, 3.0, 3.0]])
    check(lambda x: x.logcumsumexp(1), x)


def test_dtypes_and_shapes() -> None:
    check(lambda x: (x.cumsum(0), x.cumprod(0)), torch.tensor([2**40, 3, -5]))
    check(lambda x: x.cumsum(0), torch.tensor([True, False, True]))
    check(lambda x: x.cumsum(0, dtype=torch.float64), torch.tensor([1, 2, 3], dtype=torch.int32))
    check(lambda x: (x.cumsum(0), x.cumprod(0), x.cummax(0), x.logcumsumexp(0)), torch.tensor(2.0))
    check(lambda x: (x.cumsum(1), x.cumprod(0)), torch.empty(2, 0))
    check(lambda x: x.cumsum(1), torch.randn(2, 9).bfloat16())


def test_a_long_scan_is_exact_and_fast() -> None:
    check(lambda x: (x.cumsum(0), x.cummax(0)), torch.randint(-9, 9, (200_000,)))  # 4e10 steps if it were quadratic
