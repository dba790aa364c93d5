"""Special functions against eager PyTorch over their domain, poles and edges."""

from __future__ import annotations

import math

import pytest
import torch
from torch._inductor.inductor_prims import fma

from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import check, trace

EDGES = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0])
WIDE = torch.cat([torch.linspace(-30.3, 30.1, 97), torch.linspace(-1.5, 1.5, 41), EDGES])
UNIT = torch.cat([torch.linspace(-1, 1, 81), EDGES])
FUNCTIONS = {
    "erf": WIDE, "erfc": WIDE, "lgamma": WIDE, "digamma": WIDE, "sinh": WIDE, "cosh": WIDE, "asinh": WIDE, "atan": WIDE, "exp2": WIDE,
    "log2": WIDE, "log10": WIDE, "acosh": WIDE, "signbit": WIDE, "angle": WIDE, "erfinv": UNIT, "asin": UNIT, "acos": UNIT, "atanh": UNIT,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_eager(name: str) -> None:
    check(getattr(torch, name), FUNCTIONS[name])


@pytest.mark.parametrize("name", ["erf", "lgamma", "sinh", "log2", "asin"])
def test_low_precision_and_integers(name: str) -> None:
    check(getattr(torch, name), torch.linspace(0.1, 0.9, 9).bfloat16())
    check(getattr(torch, name), torch.tensor([0, 1]))


def test_bessel_and_trigamma() -> None:
    check(lambda x: (torch.special.i1(x), torch.special.i1e(x)), torch.linspace(-20, 20, 41))
    check(lambda x: (torch.polygamma(1, x), torch.polygamma(0, x)), torch.tensor([0.3, 0.5, 1, 2.5, 40, -0.3, -1.75, -8.5]))


def test_log2_and_exp2_are_exact_at_powers_of_two() -> None:
    exponents = torch.arange(-60, 61).float()
    check(lambda x: (torch.exp2(x), torch.log2(torch.exp2(x)).floor()), exponents, rtol=0, atol=0)


def test_two_operands() -> None:
    x, y = (t.flatten() for t in torch.meshgrid(*[torch.cat([EDGES, torch.tensor([3e30, -2.5, 1e-30])])] * 2, indexing="ij"))
    check(lambda x, y: (torch.atan2(x, y), torch.hypot(x, y), torch.copysign(x, y), torch.fmax(x, y), torch.fmin(x, y)), x, y)
    check(lambda x, y: torch.nextafter(x, y), x, y, rtol=0, atol=0)


def test_lerp_addcmul_addcdiv() -> None:
    x, y, z = torch.randn(3, 4, 1), torch.randn(4, 5), torch.rand(3, 4, 5) + 0.1
    check(lambda x, y, z: (torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.8), torch.lerp(x, y, z), torch.addcmul(x, y, z, value=0.5)), x, y, z)
    check(lambda x, y, z: (torch.addcdiv(x, y, z), torch.addcdiv(x, y, z, value=-2)), x.bfloat16(), y.bfloat16(), z.bfloat16())
    check(lambda x: torch.addcmul(x, x, x, value=3), torch.arange(6))
    check(lambda x, y, z: (fma(x, y, z), fma(x, torch.tensor(0.5), z)), x, y, z)


def test_erf_is_one_op_where_the_target_has_it_and_plain_stablehlo_where_not() -> None:
    gm = trace(lambda x: (torch.erf(x),), [torch.randn(4)])
    assert "custom_call @mhlo.erf" in stablehlo_text(lower(gm.graph, get_target("host")).stablehlo)
    assert "custom_call" not in stablehlo_text(lower(gm.graph, get_target("trn2")).stablehlo)
