"""Fractional max pooling with given samples against eager, and its gradient."""

import pytest
import torch

from tests.lowering.opcheck import check

aten = torch.ops.aten


def test_nothing_to_pool() -> None:
    check(lambda x, samples: aten.fractional_max_pool3d(x, [2, 3, 2], [4, 5, 3], samples), torch.randn(0, 3, 9, 11, 7), torch.rand(0, 3, 3))


@pytest.mark.parametrize(
    ("sizes", "kernel", "output"), [((9, 11), [2, 3], [4, 5]), ((9, 11), [2, 3], [1, 5]), ((9, 11, 7), [2, 3, 2], [4, 5, 3])]
)
def test_pool(sizes: tuple[int, ...], kernel: list[int], output: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, samples = torch.randn(2, 3, *sizes, generator=generator), torch.rand(2, 3, len(sizes), generator=generator)
    forward = getattr(aten, f"fractional_max_pool{len(sizes)}d")
    backward = getattr(aten, f"fractional_max_pool{len(sizes)}d_backward")
    check(lambda x, samples: forward(x, kernel, output, samples), x, samples)
    values, indices = forward(x, kernel, output, samples)
    check(lambda grad, x, indices: backward(grad, x, kernel, output, indices), values.cos(), x, indices)


@pytest.mark.parametrize("batch", [(), (1,), (2,)])
def test_more_samples_than_the_batch_has(batch: tuple[int, ...]) -> None:
    x, samples = torch.randn(*batch, 3, 9, 11), torch.rand(3, 3, 2)
    check(lambda x, samples: aten.fractional_max_pool2d(x, [2, 3], [4, 5], samples), x, samples)
