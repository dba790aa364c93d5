"""Sorting and order statistics against eager PyTorch: ties, NaN, infinities, both directions, dtypes."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.opcheck import check

NAN, INF = math.nan, math.inf
X = torch.tensor([[2.0, NAN, -INF, 2.0, 0.0, -0.0, INF], [NAN, NAN, 1.0, 1.0, 1.0, -3.0, 7.0]])
DISTINCT = torch.randperm(60, generator=torch.Generator().manual_seed(0)).reshape(3, 4, 5).float()


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_sort_is_stable_and_puts_nan_above_all(dim: int, descending: bool) -> None:
    check(lambda x: torch.sort(x, dim=dim, descending=descending, stable=True), X)


def test_sort_dtypes() -> None:
    check(lambda x: (torch.sort(x, stable=True), torch.argsort(x, descending=True, stable=True)), torch.tensor([3, -(2**40), 3, 2**40]))
    check(lambda x: torch.sort(x, stable=True), torch.tensor([True, False, True, False]))
    check(lambda x: torch.sort(x, stable=True), torch.randn(9).bfloat16())
    check(lambda x: (torch.sort(x), torch.topk(x, 1)), torch.tensor(3.0))
    check(lambda x: torch.sort(x, dim=1), torch.empty(2, 0))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_topk(dim: int, largest: bool) -> None:
    check(lambda x: torch.topk(x, 2, dim, largest), DISTINCT)


def test_topk_values_with_nan() -> None:
    check(lambda x: (torch.topk(x, 3)[0], torch.topk(x, 3, largest=False)[0]), X)


def test_order_statistics() -> None:
    check(lambda x: (torch.kthvalue(x, 2, 1), torch.kthvalue(x, 3, -1, keepdim=True), x.median(1), x.median(), x.nanmedian(2)), DISTINCT)
    check(lambda x: (x.median(), x.median(0)), torch.tensor([5, 1, 4, 2]))


def test_medians_with_nan() -> None:
    rows = torch.tensor([[NAN, 4.0, 1.0, NAN, 3.0], [NAN, NAN, NAN, NAN, NAN], [5.0, 4.0, 1.0, 2.0, 3.0]])
    check(lambda x: (x.median(1), x.median(), x.nanmedian(1)[0], x.nanmedian()), rows)


def test_mode() -> None:
    check(lambda x: (x.mode(1), x.mode(0, keepdim=True)), torch.tensor([[3, 1, 3, 1, 2], [4, 4, 4, 0, 0], [5, 6, 7, 8, 9]]))


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool) -> None:
    edges, values = torch.tensor([1.0, 3.0, 3.0, 5.0]), torch.tensor([[0.0, 1.0, 3.0], [4.0, 9.0, NAN]])
    check(lambda e, v: (torch.searchsorted(e, v, right=right), torch.bucketize(v, e, right=right, out_int32=True)), edges, values)
    rows = torch.tensor([[5.0, 1.0, 3.0], [2.0, 9.0, 4.0]])
    check(lambda r, v: torch.searchsorted(r, v, sorter=r.argsort(1), right=right), rows, values)
