"""Pooling and its gradients against eager PyTorch: ties, NaN, infinities, ceil_mode, windows over the border."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check, check_text


def _with_gradient(pool: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def step(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        result = pool(x)
        out = result[0] if isinstance(result, tuple) else result
        weights = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape) + 1
        return result, torch.autograd.grad(out, [x], weights)

    return step


MAX: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]] = {
    "1d": ((2, 3, 9), lambda x: F.max_pool1d(x, 3, 2, 1)),
    "2d": ((2, 3, 8, 9), lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)),
    "2d ceil": ((2, 3, 8, 9), lambda x: F.max_pool2d(x, (2, 3), 3, (1, 1), ceil_mode=True, return_indices=True)),
    "2d dilated": ((3, 9, 9), lambda x: F.max_pool2d(x, 2, 1, 1, dilation=(3, 2), return_indices=True)),
    "2d stride past the kernel": ((1, 2, 9, 9), lambda x: F.max_pool2d(x, 2, 3, return_indices=True)),
    "3d": ((1, 2, 5, 6, 5), lambda x: F.max_pool3d(x, 2, 2, 1, return_indices=True)),
    "adaptive 1d": ((2, 7), lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True)),
    "adaptive 2d": ((2, 3, 7, 8), lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True)),
    "adaptive 3d": ((1, 2, 5, 6, 7), lambda x: F.adaptive_max_pool3d(x, (2, 4, 3), return_indices=True)),
}


def _check_all(cases: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=dtype) for shape, _ in cases.values()]
    check(lambda *xs: [_with_gradient(pool)(x) for (_, pool), x in zip(cases.values(), xs, strict=True)], *inputs)


def test_max() -> None:
    _check_all(MAX, torch.float32)


@pytest.mark.parametrize("name", ["2d", "2d ceil", "adaptive 2d"])
def test_max_of_ties_and_specials(name: str) -> None:
    shape, pool = MAX[name]
    torch.manual_seed(0)
    x = torch.randint(0, 3, shape).float()
    x[0, 0, 2:4, 3:5] = torch.nan
    x[0, 1] = -torch.inf
    x[1, 0, 0, 0] = torch.inf
    check(pool, x)


def test_max_of_integers_and_bfloat16() -> None:
    torch.manual_seed(0)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randint(-9, -5, (2, 2, 7, 7)))
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randn(2, 2, 7, 7).bfloat16())


def test_unused_indices_are_not_made() -> None:
    text = check_text(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(1, 2, 8, 8))
    assert "iota" not in text and text.count('"stablehlo.reduce_window"') == 1


AVERAGE: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]] = {
    "1d": ((2, 3, 9), lambda x: F.avg_pool1d(x, 3, 2, 1)),
    "2d apart": ((2, 3, 8, 6), lambda x: F.avg_pool2d(x, 2)),
    "2d padded": ((2, 3, 8, 9), lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "2d padding not counted": ((2, 3, 8, 9), lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "2d ceil": ((2, 3, 8, 9), lambda x: F.avg_pool2d(x, 3, (2, 3), (1, 0), ceil_mode=True)),
    "2d ceil, padding not counted": ((2, 3, 8, 9), lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    "2d divisor": ((3, 8, 9), lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5)),
    "2d stride past the kernel": ((1, 2, 9, 9), lambda x: F.avg_pool2d(x, 2, 3)),
    "3d": ((1, 2, 5, 6, 5), lambda x: F.avg_pool3d(x, 2, 2, 1, ceil_mode=True, count_include_pad=False)),
    "3d divisor": ((1, 2, 5, 6, 5), lambda x: F.avg_pool3d(x, 3, 2, 1, divisor_override=3)),
    "adaptive to one": ((2, 3, 5, 7), lambda x: F.adaptive_avg_pool2d(x, 1)),
    "adaptive even": ((2, 3, 6, 8), lambda x: F.adaptive_avg_pool2d(x, (3, 2))),
    "adaptive uneven": ((2, 3, 7, 8), lambda x: F.adaptive_avg_pool2d(x, (3, 5))),
    "adaptive larger": ((1, 2, 3, 4), lambda x: F.adaptive_avg_pool2d(x, (5, 7))),
    "adaptive 3d": ((1, 2, 5, 6, 7), lambda x: F.adaptive_avg_pool3d(x, (2, 4, 7))),
}


def test_average() -> None:
    _check_all(AVERAGE, torch.float64)


def test_average_of_bfloat16() -> None:
    torch.manual_seed(0)
    for name in ("2d padded", "adaptive uneven"):
        shape, pool = AVERAGE[name]
        check(pool, torch.randn(shape).bfloat16())


def test_infinity_stays_in_its_window() -> None:
    x = torch.randn(1, 1, 7, 7)
    x[0, 0, 3, 3] = torch.inf
    check(lambda x: (F.adaptive_avg_pool2d(x, 3), F.avg_pool2d(x, 3, 2)), x)


def test_unpool() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        values, indices = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(values, indices, 2)

    check(step, torch.randn(2, 3, 6, 6))
