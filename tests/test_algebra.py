"""Identities of real numbers that floats do not have: a compiled program must not use them, on any dtype that eager computes in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

NAN, INF = math.nan, math.inf

CASES: dict[str, tuple[Callable[..., Tensor], list[list[float]]]] = {
    "logarithm of an odd power": (lambda x: (x**5).log(), [[-2.0, -0.5]]),
    "logarithm of a fractional power": (lambda x: (x**2.5).log(), [[-2.0, -0.5]]),
    "logarithm of a tensor's power": (lambda x, y: torch.pow(x, y).log2(), [[-2.0, -2.0], [3.0, 2.5]]),
    "mask times NaN": (lambda y: (y > 0).to(y.dtype) * y, [[1.0, NAN, -INF]]),
    "masked mean": (lambda y: (y * (y > 0)).sum() / (y > 0).sum(), [[1.0, NAN]]),
    "mask times a logarithm": (lambda y: (y > 0).to(y.dtype) * y.log(), [[1.0, 0.0, -1.0]]),
    "infinite scale of a mask": (lambda x: (x > 0) * INF, [[1.0, 0.0]]),
    "rounding by a large constant": (lambda x: (x + 1e3) - 1e3, [[0.3, 1.7, 2.5, -3.4]]),
    "rounding by a large negative constant": (lambda x: (x - 1e3) + 1e3, [[0.3, 1.7, 2.5, -3.4]]),
    "difference from a large constant": (lambda x: 1e4 - x - 1e4, [[0.3, 1.7]]),
    "what a sum loses": (lambda x: ((x + 1) - 1) == x, [[1e-5]]),
    "overflow of a sum": (lambda x: (x + 60000) - 60000, [[10000.0, 3.0]]),
    "product of small constants": (lambda x: x * 1e-25 * 1e-25, [[1e30]]),
    "quotient of large constants": (lambda x: x / 1e30 / 1e30, [[1e38]]),
    "quotients and a product": (lambda x: x / 1e30 / 1e20 * 1e20, [[1e38]]),
    "product of many constants": (lambda x: x * 1e-30 * 1e-30 * 1e30 * 1e30, [[1.0, 1e10]]),
    "overflow of a product": (lambda x: x * 1e30 * 1e-30, [[1e10]]),
    "logarithm of an exponential": (lambda x: x.exp().log(), [[100.0, -200.0]]),
    "quotient of exponentials": (lambda x: x.exp() / x.exp(), [[100.0]]),
    "product of exponentials": (lambda a, b: a.exp() * b.exp(), [[100.0], [-200.0]]),
    "quotient of quotients": (lambda a, b, c: a / b / c, [[1e30], [1e-20], [1e20]]),
    "root of a square": (lambda x: (x**2) ** 0.5, [[1e30, 1e-30, -3.0]]),
    "what is nothing times": (lambda x: x * 0, [[NAN, INF, 1.0]]),
    "difference from itself": (lambda x: x - x, [[NAN, INF, 1.0]]),
    "quotient by itself": (lambda x: x / x, [[NAN, INF, 0.0, 2.0]]),
    "quotient and product": (lambda x, y: x / y * y, [[1e38, 3.0], [1e-3, 7.0]]),
}


def values(dtype: torch.dtype) -> dict[str, list[Tensor]]:
    return {name: [torch.tensor(x, dtype=dtype) for x in given] for name, (_, given) in CASES.items()}


def everything(given: dict[str, list[Tensor]]) -> dict[str, Any]:
    return {name: CASES[name][0](*tensors) for name, tensors in given.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_no_identity_but_those_of_floats(dtype: torch.dtype) -> None:
    given = values(dtype)
    actual = torch.compile(everything, backend="neuron", fullgraph=True, options={"fallback": "error"})(given)
    for name, expected in everything(given).items():
        torch.testing.assert_close(actual[name], expected, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
