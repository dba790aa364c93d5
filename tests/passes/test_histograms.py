"""Histograms with explicit edges against eager: borders, elements outside, NaN, weights, density, one value, several dims."""

import math

import pytest
import torch

from tests.lowering.opcheck import check


@pytest.mark.parametrize("density", [False, True])
def test_one_dim(density: bool) -> None:
    x = torch.tensor([0.0, 0.1, 0.5, 1.0, 0.99, 2.0, -1.0, 0.25, 0.75])
    weight = torch.arange(9.0)
    edges = torch.tensor([0.0, 0.3, 0.5, 1.0])
    check(lambda x, w: torch.histogram(x, 4, weight=w, density=density), x, weight)
    check(lambda x: torch.histogram(x, 4, range=(0.0, 1.0), density=density), x)
    check(lambda x, edges: torch.histogram(x, edges, density=density), torch.cat([x, torch.tensor([math.nan])]), edges)


def test_single_value_and_several_dims() -> None:
    check(lambda x: torch.histogram(x, 3), torch.full((4,), 2.0))
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    check(lambda x: torch.ops.aten._histogramdd_from_bin_cts(x, [3, 4], range=[-1.0, 1.0, -2.0, 2.0], density=True), x)
