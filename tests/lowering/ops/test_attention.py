"""Attention against eager PyTorch: masks, causality, grouped heads, low precision; forward and backward."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.lowering.opcheck import check, check_text

forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _inputs(heads: int, key_heads: int, dtype: torch.dtype = torch.float32, rows: int = 7, columns: int = 9) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return (
        torch.randn(2, heads, rows, 16, dtype=dtype),
        torch.randn(2, key_heads, columns, 16, dtype=dtype),
        torch.randn(2, key_heads, columns, 16, dtype=dtype),
    )


def _mask(rows: int = 7, columns: int = 9) -> torch.Tensor:
    mask = torch.randn(2, 1, rows, columns)
    mask[:, :, :, -2:] = -math.inf
    mask[0, 0, 3] = -math.inf  # a row with nothing left
    return mask


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": _mask()},
    "scale": {"scale": 0.3},
    "unscaled": {"scale": 1.0},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_forward(case: str, key_heads: int) -> None:
    check(lambda q, k, v, o: forward(q, k, v, 0.0, **o), *_inputs(4, key_heads), CASES[case])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_backward(case: str, key_heads: int) -> None:
    q, k, v = _inputs(4, key_heads)
    options = {"is_causal": False, **CASES[case]}
    causal = options.pop("is_causal")
    if key_heads != 4:  # the eager kernel's own backward wants equal heads: repeat, and sum the gradient over the group
        k, v = (x.repeat_interleave(4 // key_heads, 1) for x in (k, v))
    out, logsumexp = forward(q, k, v, 0.0, causal, **options)
    check(
        lambda g, q, k, v, o, lse, m: backward(g, q, k, v, o, lse, 0.0, causal, **m),
        torch.randn_like(out),
        q,
        k,
        v,
        out,
        logsumexp,
        options,
    )


def test_bfloat16_is_as_exact_as_eager() -> None:
    q, k, v = _inputs(4, 4, torch.bfloat16)
    check(lambda q, k, v: forward(q, k, v)[0], q, k, v, rtol=1.6e-2, atol=1e-2)


def test_program_is_small() -> None:
    text = check_text(lambda q, k, v: forward(q, k, v)[0], *_inputs(4, 4))
    assert text.count("stablehlo.") <= 18, text


def test_bfloat16_backward_runs() -> None:
    q, k, v = _inputs(4, 4, torch.bfloat16, rows=1)
    out, logsumexp = forward(q, k, v)
    check(lambda *args: backward(*args, 0.0, False), torch.randn_like(out), q, k, v, out, logsumexp, rtol=1.6e-2, atol=1e-2)
