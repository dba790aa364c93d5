"""Elementwise ops at the edges where engines differ: shifts, division, rounding, conversions, NaN."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowering.opcheck import check

EDGES = torch.tensor([0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.7, -3.7, math.inf, -math.inf, math.nan])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_shifts(dtype: torch.dtype) -> None:
    counts = [0, 1, 7, 8, 31, 63, 64, 100] + ([-1, -7] if dtype.is_signed else [])
    x = torch.tensor([1, 5, 100, 127] + ([-1, -100] if dtype.is_signed else [200]), dtype=dtype)
    y = torch.tensor(counts, dtype=dtype)
    check(
        lambda x, y: (x[:, None] << y, x[:, None] >> y, torch.bitwise_left_shift(x[:, None], y), torch.bitwise_right_shift(x[:, None], y)),
        x,
        y,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_sign_and_division(dtype: torch.dtype) -> None:
    x = EDGES.to(dtype)
    y = torch.tensor([1.0, -2.0, 0.3, 0.0], dtype=dtype)
    check(lambda x: (x.round(), x.trunc(), x.floor(), x.ceil(), x.sign(), x.isnan(), x.isinf(), x.abs()), x)
    check(lambda x, y: (x[:, None] % y, torch.fmod(x[:, None], y), torch.div(x[:, None], y, rounding_mode="trunc"), x[:, None] / y), x, y)
    check(lambda x, y: torch.floor_divide(x[:, None], y), x, y)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_integer_division_signs(dtype: torch.dtype) -> None:
    x, y = torch.tensor([7, -7, 8, -8, 0], dtype=dtype), torch.tensor([3, -3, 2, -2], dtype=dtype)
    check(lambda x, y: (x[:, None] // y, x[:, None] % y, torch.fmod(x[:, None], y), torch.div(x[:, None], y, rounding_mode="trunc")), x, y)


def test_int64_beyond_32_bits() -> None:
    check(lambda x: (x * 10**9, x + 2**40, (x * 10**9) // 7, (x * 10**9) % 1000), torch.arange(11))


def test_powers() -> None:
    x = torch.tensor([-2.0, -0.0, 0.0, 0.5, 3.0, math.inf, math.nan])
    check(lambda x: tuple(x**p for p in (0, 0.5, 1, 2, 3, -1, -2, -0.5, 2.5)), x)
    check(lambda x, y: x[:, None] ** y, x, torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5]))
    check(lambda x: (x**2, x**3, 2 ** x.abs()), torch.arange(-3, 4))


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float64]
)
def test_conversions_from_float(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 0.9, -0.9, 3.7, 100.2, 127.0])
    check(lambda x: x.to(dtype), x)


def test_bfloat16_round_trip_is_kept() -> None:
    x = torch.randn(1000)
    check(lambda x: x.bfloat16().float(), x, rtol=0, atol=0)
    check(
        lambda q, c, s: q * c + torch.cat([-q[:, 4:], q[:, :4]], 1) * s, *(torch.randn(16, 8).bfloat16() for _ in range(3)), rtol=0, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integer_powers(dtype: torch.dtype) -> None:
    signed = dtype.is_signed
    base = torch.tensor([0, 1, 2, 3] + ([-1, -2, -3] if signed else [255]), dtype=dtype)
    exponent = torch.tensor([0, 1, 2, 5, 63, 64, 65, 100, 127] + ([-1, -2, -3] if signed else []), dtype=dtype)
    check(lambda x, e: x[:, None] ** e, base, exponent)
    check(lambda x: (x**0, x**4, x**65), base)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_division_of_a_row_by_one_number_rounds_once(dtype: torch.dtype) -> None:
    x, y = torch.randn(16, 9, dtype=dtype), torch.randn(16, 1, dtype=dtype)
    check(torch.div, x, y, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_quotient_is_rounded_once(dtype: torch.dtype) -> None:
    """Also by a constant, or a divisor that a row or everything shares: XLA's simplifier would multiply by a rounded reciprocal."""
    x = torch.arange(500).to(dtype)

    def quotients(x: torch.Tensor, y: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.reshape(5, 100) / row.unsqueeze(1)
        return x / 49.0, x / y, rows, (x / 49.0).trunc(), torch.div(x, y, rounding_mode="trunc"), (x / 49.0).to(torch.int64), x / 8

    y, row = torch.tensor(49.0, dtype=dtype), torch.tensor([49.0, 3.0, 10.0, 7.0, 41.0], dtype=dtype)
    for actual, expected in zip(torch.compile(quotients, backend="neuron")(x, y, row), quotients(x, y, row), strict=True):
        assert torch.equal(actual, expected)
    odd = torch.tensor([float("nan"), float("inf"), 0.0, -0.0], dtype=dtype)
    torch.testing.assert_close(torch.compile(lambda x: x / 0.0, backend="neuron")(odd), odd / 0.0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_that_16_bits_do_not_hold(dtype: torch.dtype) -> None:
    """As eager takes them: a factor and a divisor whole, a summand and its scale (alpha) rounded; results equal bit for bit."""
    x = (torch.randn(999) * 10.0 ** torch.randint(-3, 3, (999,))).to(dtype)
    tenth, large = torch.tensor(0.1), torch.tensor(2049)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        products = x * 0.1, 1.1 * x, x * 1e6, x * 1e9 * 1e-25, 0.1 / x, x * tenth, tenth * x, x * large, x * (1 / 0.9), x[0] * 0.1
        quotients = x / 0.9, x / tenth, x // 0.1, x // tenth, torch.div(x, 0.1, rounding_mode="trunc"), x % 0.1, x.fmod(0.1)
        sums = x + 0.1, 0.1 - x, x + large, torch.sub(x, 1, alpha=0.1)
        return *products, *quotients, *sums, torch.nn.functional.softshrink(x, 0.1), x > 0.1, x.clamp(-0.1, 0.1)

    actual = torch.compile(f, backend="neuron", fullgraph=True, options={"fallback": "error"})(x)
    for position, (mine, theirs) in enumerate(zip(actual, f(x), strict=True)):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda text, position=position: f"{position}: {text}")
