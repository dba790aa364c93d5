"""Evenly spaced integers, as ATen's kernel makes them: bounds truncated first, then double."""

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integer_ranges(dtype: torch.dtype) -> None:
    def ranges(x: torch.Tensor) -> list[torch.Tensor]:
        given = {"dtype": dtype, "device": x.device}
        lines = [
            torch.linspace(a, b, n, **given) for a, b, n in ((4.3, 1, 50), (0.1, 50.9, 50), (0, 7, 50), (7, 7, 3), (2.9, 5, 1), (1, 2, 0))
        ]
        return [*lines, torch.linspace(x, 100, 31, **given), torch.arange(2.1, 9.9, 1.9, **given), torch.arange(9.5, 2.1, -2.5, **given)]

    for expected, actual in zip(ranges(torch.tensor(3.7)), torch.compile(ranges, backend="neuron")(torch.tensor(3.7)), strict=True):
        assert actual.dtype == dtype
        assert actual.tolist() == expected.tolist()
