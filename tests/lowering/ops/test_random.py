"""The generator: Random123's known answers, and the lowered form bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neuron_dynamo.runtime import draw
from tests.lowering.opcheck import check, check_text

ops = torch.ops.neuron_dynamo
STATE = torch.tensor([-8322921849960486353, 5253828890213626688])
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]) -> None:
    first, second = [tuple(np.array([w], dtype=np.uint32) for w in pair) for pair in (key, counter)]
    assert tuple(int(w[0]) for w in draw.threefry(first, second)) == expected


def test_bits_are_those_of_the_eager_implementation() -> None:
    def fn(state: torch.Tensor) -> list[torch.Tensor]:
        made = [ops.random_uniform(state, 1, size, dtype) for size in ([7, 5], [], [0, 3]) for dtype in FLOATS]
        made += [ops.random_bernoulli(state, 3, [1000], p) for p in (0.0, 1e-9, 0.3, 1 - 1e-12, 1.0)]
        spans = (1, 2, 7, 2**16, 2**31 - 1, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**63 - 10)
        made += [ops.random_integers(state, span % 97, [1000], -5, span - 5, torch.int64) for span in spans]
        made.append(ops.random_integers(state, 5, [50], -(2**63), 2**63 - 1, torch.int64))
        made.append(ops.random_integers(state, 5, [50], 0, 9, torch.uint8))
        return made

    check(fn, STATE, rtol=0, atol=0)


def test_numbers_are_those_of_the_eager_implementation() -> None:
    """To the last places of logarithm and sine."""

    def fn(state: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
        return [ops.random_normal(state, 1, [10, 70], dtype), ops.random_exponential(state, 2, [10, 70], dtype)]

    check(fn, STATE, torch.float32, rtol=2e-6, atol=2e-6)
    check(fn, STATE, torch.float64, rtol=1e-14, atol=1e-14)
    check(fn, STATE, torch.float16, rtol=2e-3, atol=1e-6)
    check(fn, STATE, torch.bfloat16, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_uses_the_whole_significand_and_never_reaches_one(dtype: torch.dtype) -> None:
    x = ops.random_uniform(STATE, 0, [100_000], dtype).double()
    assert x.min() >= 0 and x.max() < 1
    steps = x * 2.0 ** draw.digits(dtype)
    assert torch.equal(steps, steps.round())
    assert (steps % 2 == 1).double().mean().sub(0.5).abs() < 0.01


def test_streams_differ_by_state_and_index() -> None:
    def words(state: torch.Tensor, index: int) -> torch.Tensor:
        return ops.random_integers(state, index, [500], 0, 2**32, torch.int64)

    seen = torch.cat([words(STATE, 0), words(STATE, 1), words(STATE + torch.tensor([0, 2**40]), 0), words(STATE + torch.tensor([1, 0]), 0)])
    assert seen.unique().numel() == seen.numel()


def test_exponential_is_never_zero() -> None:
    x = ops.random_exponential(STATE, 0, [1_000_000], torch.float32)
    assert x.min() > 0 and x.isfinite().all()
    assert x.max() > 11 and x.min() < 1e-5


def test_program_has_one_generator_for_each_size() -> None:
    def fn(state: torch.Tensor) -> list[torch.Tensor]:
        return [ops.random_bernoulli(state, i, size, 0.5) for i, size in enumerate(([20], [4, 5], [2, 10], [21]))]

    text = check_text(fn, STATE)
    assert text.count("func.func private @threefry2x32") == 2
    assert text.count("call @threefry2x32") == 4
    assert "ui64" not in text


def test_dropout_backward_by_itself() -> None:
    grad, mask = torch.randn(5, 6), torch.rand(5, 6) > 0.5
    check(lambda g, m: torch.ops.aten.native_dropout_backward(g, m, 1.25), grad, mask, rtol=0, atol=0)
