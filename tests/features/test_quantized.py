"""Eight-bit integers: products, torch.ao's quantised_decomposed ops, fake quantisation, and torchao's quantised linear layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines torch.ops.quantized_decomposed
from torch import Tensor, nn

from tests.features.native import check_native, compiled, host_ops

quantized = torch.ops.quantized_decomposed
RANGE = (-128, 127, torch.int8)


def integers(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def test_int_mm_is_exact() -> None:
    x, y = integers(32, 512), integers(512, 16)
    actual = check_native(torch._int_mm, x, y)
    assert actual.dtype == torch.int32 and torch.equal(actual, x.int() @ y.int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_int8pack_mm(dtype: torch.dtype) -> None:
    """Against float64, which it is closer to than eager: that rounds on the way."""
    x, w, scales = torch.randn(32, 64).to(dtype), integers(48, 64), (torch.rand(48) + 0.1).to(dtype)
    truth = (x.double() @ w.double().t()) * scales.double()
    actual = compiled(torch._weight_int8pack_mm)(x, w, scales)
    unit = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(actual.double(), truth, rtol=1.01 * unit, atol=1e-6 * float(truth.abs().max()))
    eager = torch._weight_int8pack_mm(x, w, scales)
    assert (actual.double() - truth).abs().max() <= (eager.double() - truth).abs().max()
    torch.testing.assert_close(actual, eager, rtol=4 * unit, atol=1e-3 * float(truth.abs().max()))
    assert actual.dtype == dtype and not host_ops()


def by_tensor(x: Tensor) -> Any:
    scale, zero = quantized.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    whole = quantized.quantize_per_tensor.tensor(x, scale, zero, *RANGE)
    return scale, zero, whole, quantized.dequantize_per_tensor.tensor(whole, scale, zero, *RANGE)


def by_number(x: Tensor) -> Any:
    whole = quantized.quantize_per_tensor(x, 0.03, 5, 0, 255, torch.uint8)
    return whole, quantized.dequantize_per_tensor(whole, 0.03, 5, 0, 255, torch.uint8)


def in_bfloat16(x: Tensor) -> Any:
    whole = quantized.quantize_per_tensor(x.bfloat16(), 0.03, 5, 0, 255, torch.uint8)
    return whole, quantized.dequantize_per_tensor(whole, 0.03, 5, 0, 255, torch.uint8, out_dtype=torch.bfloat16)


def by_channel(x: Tensor) -> Any:
    scales, zeros = torch.linspace(0.05, 1, 8), torch.arange(-4, 4)
    whole = quantized.quantize_per_channel(x, scales, zeros, 1, *RANGE)
    return whole, *(quantized.dequantize_per_channel(whole, scales, z, 1, *RANGE) for z in (zeros, None))


def by_token(x: Tensor) -> Any:
    scales, zeros = torch.linspace(0.05, 1, 4)[:, None], torch.arange(-2, 2)[:, None]
    whole = quantized.quantize_per_token(x, scales, zeros, *RANGE)
    return whole, quantized.dequantize_per_token(whole, scales, zeros, *RANGE, torch.float32)


@pytest.mark.parametrize("fn", [by_tensor, by_number, in_bfloat16, by_channel, by_token], ids=lambda fn: fn.__name__)
def test_there_and_back(fn: Callable[[Tensor], Any]) -> None:
    check_native(fn, torch.randn(4, 8) * 3)


def test_range_that_does_not_hold_zero() -> None:
    check_native(by_tensor, torch.rand(4, 8) + 5)
    torch._dynamo.reset()
    check_native(by_tensor, torch.zeros(4, 8))


@pytest.mark.parametrize("by", ["tensor", "channel", "tensor of parameters"])
def test_fake_quantisation_and_its_gradient(by: str) -> None:
    scales, zeros = torch.linspace(0.01, 0.05, 8), torch.arange(-4, 4, dtype=torch.int32)

    def fn(x: Tensor) -> Tensor:
        if by == "tensor":
            return torch.fake_quantize_per_tensor_affine(x, 0.03, 5, 0, 255)
        if by == "channel":
            return torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -128, 127)
        return torch.fake_quantize_per_tensor_affine(x, scales[2], zeros[6], 0, 255)

    grads = []
    for f in (fn, compiled(fn)):
        x = (torch.arange(-16.0, 16).reshape(4, 8) / 3).requires_grad_()
        out = f(x)
        (out * out.detach().cos()).sum().backward()
        grads.append((out.detach(), x.grad))
    torch.testing.assert_close(grads[1], grads[0])
    assert not host_ops()


# torchao: its layers hold tensor subclasses, which AOTAutograd takes apart


def recipes() -> dict[str, Any]:
    ao = pytest.importorskip("torchao.quantization", reason="torchao is not installed (pip install --no-deps torchao)")
    return {
        "int8 weight": ao.Int8WeightOnlyConfig(),
        "int8 both": ao.Int8DynamicActivationInt8WeightConfig(),
        "float8 weight": ao.Float8WeightOnlyConfig(),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", ["int8 weight", "int8 both", "float8 weight"])
def test_torchao_linear(recipe: str, dtype: torch.dtype) -> None:
    config = recipes()[recipe]
    from torchao.quantization import quantize_

    plain = nn.Sequential(nn.Linear(64, 128), nn.ReLU()).to(dtype).eval()  # one layer: a second would requantise rounding noise
    small = copy.deepcopy(plain)
    quantize_(small, config)
    x = torch.randn(16, 64, dtype=dtype)
    with torch.no_grad():
        expected, actual = small(x), compiled(small)(x)
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        assert (actual - plain(x)).norm() < 0.1 * plain(x).norm()
    assert not host_ops()
