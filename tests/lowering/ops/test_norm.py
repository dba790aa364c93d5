"""Normalisations against eager PyTorch: forward, gradients, running statistics, low precision."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check, check_text

aten = torch.ops.aten


def _randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("affine", ["both", "weight", "none"])
def test_layer_norm(affine: str, dtype: torch.dtype) -> None:
    x, weight, bias, grad = (_randn(*s, seed=i, dtype=dtype) for i, s in enumerate([(2, 3, 8), (3, 8), (3, 8), (2, 3, 8)]))
    w, bb = (None if affine == "none" else weight), (bias if affine == "both" else None)
    check(lambda x, w, bb: aten.native_layer_norm(x, [3, 8], w, bb, 1e-5), x, w, bb)
    _, mean, rstd = aten.native_layer_norm(x, [3, 8], w, bb, 1e-5)
    mask = [True, w is not None, bb is not None]
    check(lambda g, x, m, r, w, bb: aten.native_layer_norm_backward(g, x, [3, 8], m, r, w, bb, mask), grad, x, mean, rstd, w, bb)


def test_layer_norm_of_a_large_mean_keeps_its_digits() -> None:
    # A variance by E[x^2] - E[x]^2 would have none left: 30000^2 has a spacing of 64.
    check(lambda x: aten.native_layer_norm(x, [64], None, None, 1e-5)[2], _randn(4, 64) + 30000, rtol=1e-3, atol=0)


def test_layer_norm_program_size() -> None:
    text = check_text(lambda x, w, b: F.layer_norm(x, (8,), w, b), _randn(2, 3, 8), _randn(8), _randn(8))
    assert len(re.findall(r"= (?:\")?stablehlo\.", text)) <= 20  # 15 and the constants 0, n and eps, two of them broadcast
    assert "convert" not in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4)])
def test_group_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias, grad = (_randn(*s, seed=i, dtype=dtype) for i, s in enumerate([shape, (6,), (6,), shape]))
    size = (2, 6, x.numel() // 12, 3)
    check(lambda x, w, b: aten.native_group_norm(x, w, b, *size, 1e-5), x, weight, bias)
    _, mean, rstd = aten.native_group_norm(x, weight, bias, *size, 1e-5)
    check(lambda g, x, m, r, w: aten.native_group_norm_backward(g, x, m, r, w, *size, [True, True, True]), grad, x, mean, rstd, weight)


def _batch_norm_tensors(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    c = shape[1]
    x = _randn(*shape, dtype=dtype) * 3 + 1
    return [x, _randn(c, seed=1), _randn(c, seed=2), _randn(c, seed=3), _randn(c, seed=4).abs() + 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 4)])
def test_batch_norm(shape: tuple[int, ...], training: bool, dtype: torch.dtype) -> None:
    tensors = _batch_norm_tensors(shape, dtype)
    # For bfloat16 PyTorch's own shape function says that the batch's statistics are bfloat16; its kernel makes float32.
    picked = [0, 3, 4] if dtype == torch.bfloat16 else [0, 1, 2, 3, 4]
    check(lambda *t: [aten._native_batch_norm_legit_functional(*t, training, 0.1, 1e-5)[i] for i in picked], *tensors)


def test_batch_norm_functional_forms() -> None:
    tensors = _batch_norm_tensors((2, 3, 4))
    check(lambda *t: aten._batch_norm_with_update_functional(*t, 0.1, 1e-5)[:3], *tensors)
    check(lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5), *tensors[:3])
    check(lambda *t: aten._native_batch_norm_legit_no_training(*t, 0.1, 1e-5), *tensors)


def test_batch_norm_updates_running_statistics() -> None:
    def step(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        mean, var = mean.clone(), var.clone()
        return aten._native_batch_norm_legit(x, None, None, mean, var, True, 0.3, 1e-5)[0], mean, var

    check(step, _randn(5, 3, 4), torch.zeros(3), torch.ones(3))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_backward(train: bool, dtype: torch.dtype) -> None:
    x, weight, bias, mean, var = _batch_norm_tensors((3, 3, 4), dtype)
    grad = _randn(3, 3, 4, seed=9, dtype=dtype)
    _, save_mean, save_invstd = aten.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5)
    check(
        lambda g, x, w, m, v, sm, si: aten.native_batch_norm_backward(g, x, w, m, v, sm, si, train, 1e-5, [True, True, True]),
        *(grad, x, weight, mean, var, save_mean, save_invstd),
    )


def test_rms_and_instance_norm() -> None:
    check(lambda x, w: F.rms_norm(x, (8,), w, 1e-6), _randn(2, 3, 8), _randn(8))
    check(lambda x: F.instance_norm(x), _randn(2, 3, 8))
