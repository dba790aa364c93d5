"""Field cases of the kind STRIDES: inputs that are not contiguous, and strides of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.field.check import check, check_gradients, host_ops


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_transposed_inputs(causal: bool) -> None:
    """B157"""
    q, k, v = (torch.randn(2, 5, 3, 8).transpose(-2, -3) for _ in range(3))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    scattered = torch.randn(2, 3, 10, 16)[:, :, ::2, 1::2]
    check_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), scattered, k, v, rtol=1e-4, atol=1e-5)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "permuted": lambda: torch.randn(2, 4, 5, 3).permute(0, 3, 1, 2),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(2, 3, 5, 4).transpose(2, 3),
    "sliced": lambda: torch.randn(2, 3, 8, 10)[:, :, ::2, ::2],
    "expanded": lambda: torch.randn(1, 3, 4, 5).expand(2, -1, -1, -1),
    "flipped memory": lambda: torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0),
}
RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0),
    "elementwise": lambda x: (x + 1, x.relu(), x * x, torch.where(x > 0, x, 0.0)),
    "views": lambda x: (x.permute(0, 2, 3, 1), x.transpose(1, 3), x[:, 1:], x.flatten(2), x.unsqueeze(1), x.diagonal(dim1=2, dim2=3)),
    "views of a result": lambda x: ((x * 2).permute(0, 2, 3, 1), (x + 1)[..., ::2], (x - 1).flatten(1)),
    "reductions": lambda x: (x.sum(1), x.mean((2, 3), keepdim=True), x.amax(0)),
    "copies": lambda x: (x.clone(), x.contiguous(), x.to(torch.float64), torch.empty_like(x).fill_(1), torch.zeros_like(x)),
    "pooling": lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 2)),
    "joined": lambda x: (torch.cat([x, x], 1), torch.stack([x, x]), F.pad(x, (1, 1))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_have_eagers_strides(layout: str) -> None:
    """B159"""
    check(lambda x: {name: fn(x) for name, fn in RESULTS.items()}, LAYOUTS[layout](), stride=True, native=False)


def test_an_op_whose_fake_kernel_predicts_wrong_strides() -> None:
    """B161: what comes out is right, and what reads it reads right numbers."""

    @torch.library.custom_op("field_cases::flipped", mutates_args=())
    def flipped(x: Tensor) -> Tensor:
        return x.t().contiguous().t() + 1  # column-major

    @flipped.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty(x.shape)  # says row-major

    x = torch.randn(3, 5)
    check(lambda x: ((y := flipped(x * 2)), y * 2, y.reshape(-1), y.t() @ y), x, native=False)
    assert host_ops()
