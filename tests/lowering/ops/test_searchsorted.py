"""searchsorted and bucketize against eager: few boundaries (compared at once) and many (searched), ties, NaN, rows, a sorter."""

import math

import pytest
import torch

from tests.lowering.opcheck import check, check_text


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [1, 5, 33, 100])
def test_one_row(count: int, right: bool) -> None:
    boundaries = (torch.arange(count) // 2).float()
    values = torch.tensor([[-math.inf, -1.0, 0.0, 0.5, 1.0], [2.0, count / 2, count / 4, math.inf, math.nan]])
    check(
        lambda edges, x: (torch.searchsorted(edges, x, right=right), torch.bucketize(x, edges, right=right, out_int32=True)),
        boundaries,
        values,
    )


def test_many_boundaries_are_searched_in_linear_memory() -> None:
    text = check_text(torch.bucketize, torch.rand(50), torch.linspace(0, 1, 1000))
    assert "stablehlo.while" in text
    assert "50x1000" not in text


def test_rows_and_sorter() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 9, (3, 40), generator=generator)
    values = torch.randint(-1, 10, (3, 7), generator=generator)
    check(torch.searchsorted, rows.sort(-1).values, values)
    check(lambda rows, values, order: torch.searchsorted(rows, values, sorter=order, side="right"), rows, values, rows.argsort(-1))
    check(lambda edges: torch.searchsorted(edges, 3), rows[0].sort().values)
