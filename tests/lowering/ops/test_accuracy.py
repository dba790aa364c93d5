"""Relative error of functions of one number against float64, also where the value is small: what absolute tolerances do not see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from neuron_dynamo.lowering.pipeline import lower
from neuron_dynamo.target import get_target
from tests.lowering import opcheck

_SMALL = torch.logspace(-8, 0, 4000)
WIDE = torch.cat([torch.linspace(-12, 12, 20001), _SMALL, -_SMALL])
POSITIVE = torch.cat([torch.linspace(0.01, 30, 20001), _SMALL])
UNIT = torch.linspace(-0.999, 0.999, 20001)

# Domain, and the largest error allowed in units of float32's epsilon. The exponential of CPU kernels is good to one.
FUNCTIONS = {
    torch.exp: (WIDE, 1), torch.expm1: (WIDE, 4), torch.log: (POSITIVE, 1), torch.log1p: (POSITIVE, 2), torch.log2: (POSITIVE, 2),
    torch.log10: (POSITIVE, 2), torch.exp2: (WIDE, 1), torch.sin: (WIDE, 1), torch.cos: (WIDE, 1), torch.tan: (WIDE, 2),
    torch.asin: (UNIT, 2), torch.acos: (UNIT, 2), torch.atan: (WIDE, 2), torch.sinh: (WIDE, 2), torch.cosh: (WIDE, 3),
    torch.tanh: (WIDE, 3), torch.asinh: (WIDE, 3), torch.acosh: (POSITIVE + 1, 4), torch.atanh: (UNIT, 3), torch.rsqrt: (POSITIVE, 2),
    torch.sigmoid: (WIDE, 2), torch.erf: (WIDE, 4), torch.erfc: (WIDE, 1), torch.erfinv: (UNIT, 1), torch.lgamma: (WIDE, 1),
    torch.digamma: (WIDE, 1), F.silu: (WIDE, 3), F.softplus: (WIDE, 3), F.logsigmoid: (WIDE, 3), F.elu: (WIDE, 4), F.mish: (WIDE, 5),
}  # fmt: skip


def test_error_in_float32() -> None:
    def all_of_them(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(x) for function, x in zip(FUNCTIONS, inputs, strict=True))

    inputs = [x for x, _ in FUNCTIONS.values()]
    results = opcheck.run(lower(opcheck.trace(all_of_them, inputs).graph, get_target("host")), inputs)
    for result, (function, (x, allowed)) in zip(results, FUNCTIONS.items(), strict=True):
        exact = function(x.double())
        counted = exact.isfinite() & (exact.abs() > 1e-37)  # XLA's CPU backend flushes denormal numbers
        assert counted.sum() > 9000
        worst, place = _error(result, exact)[counted].max(0)
        assert worst <= allowed, f"{function.__name__}: {worst:.2f} epsilon at {x[counted][place]:.8g}"


def _error(result: Tensor, exact: Tensor) -> Tensor:
    return (result.double() - exact).abs() / exact.abs() / torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_soft_margin_gradient_of_large_margins(dtype: torch.dtype) -> None:
    def gradients(x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        return tuple(torch.autograd.grad(F.soft_margin_loss(x, target, reduction=how).sum(), x)[0] for how in ("none", "mean", "sum"))

    inputs = [torch.linspace(-40, 40, 101).to(dtype), torch.tensor([1.0, -1.0, 0.5] * 34)[:101].to(dtype)]
    results = opcheck.run(lower(opcheck.trace(gradients, inputs).graph, get_target("host")), inputs)
    for result, exact in zip(results, gradients(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1.5 * torch.finfo(dtype).eps, atol=0)


def test_gelu_tanh_gradient_of_large_numbers() -> None:
    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(F.gelu(x, approximate="tanh").sum(), x)[0]

    opcheck.check(gradient, torch.tensor([1e10, -1e10, 1e14, -1e14, 1e18, -1e18]))


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_deviation_whose_square_is_no_float32(scale: float) -> None:
    def deviations(x: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        return x.std(1), *torch.std_mean(x, 0), torch.autograd.grad(x.std(1).sum(), x)[0]

    opcheck.check(deviations, torch.randn(3, 40, generator=torch.Generator().manual_seed(0)) * scale, atol=0, rtol=1e-5)


def test_sinc_gradient_of_small_complex_numbers() -> None:
    """A difference of sine and cosine, over a square: the sine of what is small must be just that."""

    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(torch.sinc(x), x, torch.ones_like(x))[0]

    opcheck.check(gradient, torch.tensor([1e-15 + 1e-7j, 1e-7 + 1e-15j, 3e-9 - 2e-9j, 1e-4j, 0.3 + 0.4j]), atol=1e-3, rtol=1e-5)
