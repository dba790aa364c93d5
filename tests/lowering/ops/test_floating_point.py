"""frexp, round to decimals and logit against eager, with subnormal and non-finite numbers."""

import math

import pytest
import torch

from tests.lowering.opcheck import check

VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, 0.3, -6.75, 1e-40, -1e-44, 6e-8, 12345.678, 2.5, 0.125, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_frexp(dtype: torch.dtype) -> None:
    check(torch.frexp, torch.tensor(VALUES, dtype=dtype), rtol=0, atol=0)
    mantissa, exponent = torch.frexp(torch.tensor(1e-40))
    assert mantissa * 2.0 ** exponent.double() == torch.tensor(1e-40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_round_decimals_and_logit(dtype: torch.dtype) -> None:
    x = torch.cat([torch.tensor(VALUES), torch.linspace(-3, 3, 200)]).to(dtype)
    check(lambda x: tuple(torch.round(x, decimals=decimals) for decimals in (-1, 0, 2, 4)), x)
    normal = x[(x == 0) | (x.abs() >= torch.finfo(torch.float32).tiny) | x.isnan()]  # the host target takes subnormals for zero
    check(lambda x: (torch.logit(x), torch.logit(x, 1e-3)), normal)
