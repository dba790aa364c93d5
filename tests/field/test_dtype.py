"""Field cases of the kind DTYPE."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.field.check import check

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


@pytest.mark.parametrize("wide", [False, True])
def test_rotary_embedding_over_complex_numbers(wide: bool) -> None:
    """B081"""
    x = torch.randn(2, 5, 4, dtype=torch.float64 if wide else torch.float32)
    angle = torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.01])).to(x.dtype)

    def fn(x: Tensor, angle: Tensor) -> Tensor:
        turns = torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 2, 2)) * turns).flatten(2)

    check(fn, x, angle)


def test_bool_results() -> None:
    """B083"""
    x = torch.randn(3, 5)
    result = check(lambda x: (x > 0, (x > 0).any(), (x > 0).all(), (x > 9).any(0), ~(x > 0), x.isnan(), (x > 0).t()), x)
    assert all(part.dtype == torch.bool for part in result)


def test_bool_operators() -> None:
    """B085"""
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    check(lambda a, b: (a & b, a | b, a ^ b, ~a, a == b, a != b, a < b, a * b, a + b, a.logical_xor(b), a & True, a.max(), a.sum()), a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_argmax_after_softmax(dtype: torch.dtype) -> None:
    """B087"""
    x = (torch.randperm(60).reshape(3, 20) / 4).to(dtype)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        p = x.softmax(-1)
        return p.argmax(-1), p.max(-1).indices, p.argmin(), x.max(0).indices, x.min(1).indices

    result = check(fn, x)
    assert torch.equal(result[0], x.argmax(-1)) and result[0].dtype == torch.int64


def test_int64_beyond_32_bits() -> None:
    """B089"""
    check(
        lambda n: (
            torch.arange(11) * 10**9,
            n + 2**40,
            n * n,
            n // 3,
            n % 1000,
            n.sum(),
            n.cumsum(0),
            n.max(),
            n.to(torch.float64),
            n > 2**33,
        ),
        torch.arange(4) * (2**31 + 7),
    )
    torch._dynamo.reset()
    check(lambda x: torch.where(x > 0, x * 2**33 - 2**35, torch.full_like(x, -(2**62))), torch.tensor([3, -1, 2]))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_by_large_and_negative_counts(dtype: torch.dtype) -> None:
    """B091: a count below 0 or at least the width is undefined in C++; PyTorch gives 0, or the sign for a right shift."""
    x = torch.tensor([1, -1, 5, 100]).to(dtype)
    bits = dtype.itemsize * 8
    for count in (0, 1, bits - 1, bits, 64, -1):
        if count == 64 and dtype == torch.uint8:
            continue
        torch._dynamo.reset()
        check(lambda x, c: (x << c, x >> c), x, torch.full_like(x, count))


def test_bit_operations_with_python_bool() -> None:
    """B093"""

    def fn(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return x.bitwise_and_(True), x | False, x ^ True, n & True, n.bitwise_or(False)

    check(fn, torch.tensor([True, False]), torch.tensor([3, 4]))


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool, torch.float16, torch.bfloat16, torch.float64])
def test_promotion_with_numbers_and_scalars(dtype: torch.dtype) -> None:
    """B089: types of results, not only their values, for tensors with Python numbers and 0-d tensors."""
    x = torch.tensor([[1, 0, 3], [4, 5, 6]]).to(dtype)
    check(
        lambda x: (x + 1, x * 2.5, x / 2, x + torch.tensor(2.0, dtype=torch.float64), x.sum(), x.float() + x, x == 1, x.to(torch.bool) * 2),
        x,
    )
