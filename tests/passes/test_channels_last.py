"""Ops that keep channels_last: strides of results, and values of results and gradients, as eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

PLACES = F.max_pool2d(torch.randn(2, 6, 8, 8, generator=torch.Generator().manual_seed(0)), 2, return_indices=True)[1]
X = torch.linspace(-2, 2, 192).view(2, 6, 4, 4)
VOLUME = torch.linspace(-2, 2, 384).view(2, 6, 2, 4, 4)

CASES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 3), X),
    "channel_shuffle, 3d": (lambda x: torch.ops.aten.channel_shuffle(x, groups=2), VOLUME),
    "channel_shuffle, nothing": (lambda x: F.channel_shuffle(x, 3), X[:0]),
    "channel_shuffle, rows last": (lambda x: F.channel_shuffle(x.permute(0, 3, 1, 2).transpose(2, 3), 2), X),
    "native_channel_shuffle": (lambda x: torch.native_channel_shuffle(x, 3), X),
    "max_unpool2d": (lambda x: F.max_unpool2d(x, PLACES, 2), X),
    "max_unpool2d, no batch": (lambda x: F.max_unpool2d(x, PLACES[0], 2), X[0]),
}
NOT_DIFFERENTIABLE = ("native_channel_shuffle",)


@pytest.mark.parametrize("case", CASES)
def test_layout(case: str) -> None:
    function, x = CASES[case]
    if x.ndim > 3:
        x = x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.channels_last_3d)
    given, again = (x.clone(memory_format=torch.preserve_format).requires_grad_(case not in NOT_DIFFERENTIABLE) for _ in range(2))
    expected, actual = function(given), torch.compile(function, backend="neuron", fullgraph=True)(again)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, check_stride=True)
    if expected.requires_grad:
        slope = torch.linspace(-1, 1, expected.numel()).view(expected.shape)
        gradients = [torch.autograd.grad(y, x, slope)[0] for y, x in ((actual, again), (expected, given))]
        torch.testing.assert_close(*gradients, rtol=0, atol=0)
