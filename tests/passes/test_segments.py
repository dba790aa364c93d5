"""segment_reduce and its gradient against eager: empty segments, ties, zeros, NaN, an initial value."""

import math

import pytest
import torch

from tests.lowering.opcheck import check

DATA = torch.tensor([[1.0, 2.0], [0.0, 3.0], [0.0, math.nan], [4.0, 5.0], [4.0, 5.0], [7.0, 0.0]])


@pytest.mark.parametrize("initial", [None, 0.5])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_lengths(reduce: str, initial: float | None) -> None:
    def both(data: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        data = data.detach().requires_grad_()
        result = torch._segment_reduce(data, reduce, lengths=lengths, axis=0, initial=initial, unsafe=True)
        return result, torch.autograd.grad(result.square().sum(), data)[0]

    check(both, DATA, torch.tensor([3, 0, 2, 1]))


def test_offsets() -> None:
    check(lambda x, offsets: torch._segment_reduce(x, "sum", offsets=offsets), torch.arange(6.0), torch.tensor([0, 2, 2, 6]))
