"""Eight-bit floating point: conversions as ATen's bit for bit, what PyTorch lets one do with such tensors, and scaled products.

A NaN is a NaN: its payload and sign are left open, as PyTorch's documentation leaves them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neuron_dynamo.lowering.constants import FLOAT8
from tests.features.native import check_native, compiled, host_ops

TYPES = sorted(FLOAT8, key=str)
WIDE = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def every(dtype: torch.dtype) -> Tensor:
    """All 256 patterns."""
    return torch.arange(256).to(torch.uint8).view(dtype)


def hard(dtype: torch.dtype) -> Tensor:
    """float32: every value of `dtype`, every midpoint of two with its neighbours, what lies beyond the range, and some more."""
    values = every(dtype).float()
    values = values[values.isfinite()].sort().values
    middle = (values[1:] + values[:-1]) / 2
    above, below = (torch.nextafter(middle, torch.tensor(end)) for end in (torch.inf, -torch.inf))
    largest = float(values.max())
    beyond = torch.tensor([1.0, 1.03, 1.05, 1.0714, 1.08, 1.1, 1.2, 1.25, 1.26, 2.0, 300.0]) * min(largest, 1e30)
    special = torch.tensor([0.0, torch.inf, torch.nan, 1e30, 3.4e38, 2.0**-126, 2.0**-20])
    found = torch.cat([values, middle, above, below, beyond, special, torch.randn(2000) * 50, torch.randn(500) * 1e-3])
    found = found[~(found.abs() < 2.0**-126) | (found == 0)]  # the host target flushes denormal float32
    return torch.cat([found, -found])


def same_bits(actual: Tensor, expected: Tensor) -> None:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.dtype.itemsize]
    nan = expected.float().isnan()
    assert actual.dtype == expected.dtype and torch.equal(actual.float().isnan(), nan)
    wrong = (actual.view(integer) != expected.view(integer)) & ~nan
    assert not wrong.any(), [(float(a), float(e)) for a, e in zip(actual[wrong][:5], expected[wrong][:5], strict=True)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_conversion_to_float8(dtype: torch.dtype) -> None:
    x = hard(dtype)
    sources = [x.to(wide) for wide in WIDE]
    if dtype == torch.float8_e8m0fnu:  # float16 and bfloat16 of what is left may be denormal float32
        sources = [s[(s.double().abs() >= 2.0**-126) | (s == 0) | s.isnan()] for s in sources]
    results = compiled(lambda *given: [s.to(dtype) for s in given])(*sources)
    for source, result in zip(sources, results, strict=True):
        same_bits(result, source.to(dtype))
    assert not host_ops()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_conversion_from_float8(dtype: torch.dtype) -> None:
    x = every(dtype)
    for wide, result in zip(WIDE, compiled(lambda x: [x.to(dtype) for dtype in WIDE])(x), strict=True):
        same_bits(result, x.to(wide))
    assert not host_ops()


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_integers_and_between_float8_types(dtype: torch.dtype) -> None:
    other = E5M2 if dtype == E4M3 else E4M3
    whole = torch.arange(-700, 700)
    small = every(dtype)[every(dtype).float().abs() < 1e6]

    def fn(whole: Tensor, x: Tensor, small: Tensor) -> Any:
        return (
            whole.to(dtype).float(),
            x.to(other).float(),
            small.to(torch.int32),
            x.to(torch.bool),
            whole.to(torch.uint8).to(dtype).float(),
        )

    check_native(fn, whole, every(dtype)[every(dtype).float().isfinite()], small)


def test_round_trip_is_kept() -> None:
    """A conversion there and back must not be simplified away; a constant is rounded as a tensor is."""
    x = torch.randn(64)
    back = check_native(
        lambda x: (x.to(E4M3).float(), torch.full((2,), 0.3, dtype=E4M3).float(), torch.full((2,), 0.3, dtype=E5M2).float()), x
    )
    assert not torch.equal(back[0], x)


ALLOWED: dict[str, Callable[[Tensor], Any]] = {
    "abs and comparison": lambda x: (x.abs(), x == x.flip(0), x.isnan()),
    "cat and stack": lambda x: (torch.cat([x, x]), torch.stack([x, x], 1)),
    "where": lambda x: torch.where(x.float() > 0, x, x.abs()),
    "rows": lambda x: (x[torch.tensor([1, 0])], x.index_select(1, torch.tensor([2])), F.embedding(torch.tensor([2, 1]), x)),
    "layout": lambda x: (x.t().contiguous(), x.repeat(2, 1), x.roll(1), F.pad(x, (1, 1)), x[None].expand(2, -1, -1).contiguous()),
    "bits": lambda x: (x.view(torch.uint8), x.view(torch.uint8).view(E5M2)),
    "new": lambda x: (torch.zeros_like(x), torch.ones(3, dtype=x.dtype), x.clone().fill_(3.0)),
    "write": lambda x: (torch.slice_scatter(x, x[:2], 0, 1, 3), x.clone().index_put_((torch.tensor([0]),), x[1:2])),
    "product": lambda x: x @ x.t(),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_pytorch_allows(name: str) -> None:
    x = torch.randn(4, 4).to(E4M3)

    def fn(x: Tensor) -> Any:  # the results as float32, since assert_close cannot subtract float8
        return torch.utils._pytree.tree_map(lambda t: t if t.dtype in (torch.bool, torch.uint8) else t.float(), ALLOWED[name](x))

    check_native(fn, x, rtol=0.0, atol=0.13 if name == "product" else 0.0)


def test_what_pytorch_refuses_is_refused() -> None:
    x = torch.randn(4).to(E4M3)
    with pytest.raises(NotImplementedError):
        x + x
    # Compiled, the sum is taken in float32 and rounded: what eager would do if it had the kernel.
    result = compiled(lambda x: x + x)(x)
    same_bits(result, (x.float() + x.float()).to(E4M3))


# Scaled products


def operands(m: int = 32, k: int = 64, n: int = 48, second: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    """Row-major [m, k] and column-major [k, n], as the op wants them."""
    return torch.randn(m, k).to(E4M3), torch.randn(n, k).to(second).t()


def exact(x: Tensor, y: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product in float64."""
    product = (x.double() @ y.double()) * scale_a.double() * scale_b.double()
    return product if bias is None else product + bias.double()


def close_to_exact(actual: Tensor, truth: Tensor) -> None:
    """One rounding of the result, on top of what float32 sums lose."""
    unit = torch.finfo(actual.dtype).eps / 2
    denormal = 2.0**-10 if actual.dtype == E4M3 else 0.0
    torch.testing.assert_close(actual.double(), truth, rtol=unit * 1.01, atol=denormal + 1e-6 * float(truth.abs().max()))


TENSOR = (torch.tensor(0.37), torch.tensor(1.9))
ROWS = (torch.linspace(0.1, 2, 32)[:, None], torch.linspace(3, 0.5, 48)[None])


@pytest.mark.parametrize("scales", [TENSOR, ROWS], ids=["tensor", "rows"])
@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_scaled_mm(scales: tuple[Tensor, Tensor], out: torch.dtype, with_bias: bool) -> None:
    x, y = operands()
    bias = torch.linspace(-1, 1, 48).to(out) if with_bias else None

    def fn(x: Tensor, y: Tensor, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        return torch._scaled_mm(x, y, a, b, bias=bias, out_dtype=out, use_fast_accum=True)

    unit = torch.finfo(out).eps
    actual = check_native(fn, x, y, *scales, bias, rtol=unit * 10, atol=max(unit, 2e-6) * 10)
    close_to_exact(actual, exact(x, y, *scales, bias))


def test_scaled_mm_of_mixed_types_and_to_float8() -> None:
    x, y = operands(second=E5M2)
    actual = check_native(lambda x, y: torch._scaled_mm(x, y, *TENSOR, out_dtype=torch.float32), x, y, rtol=1e-5, atol=1e-5)
    close_to_exact(actual, exact(x, y, *TENSOR))
    torch._dynamo.reset()
    x, y = operands()
    result = compiled(lambda x, y: torch._scaled_mm(x, y, *TENSOR))(x, y)
    assert result.dtype == E4M3
    close_to_exact(result, exact(x, y, *TENSOR).clamp(-448, 448))


def test_scaled_mm_with_a_scale_of_the_result_runs_on_the_host() -> None:
    x, y = operands()
    check_native(lambda x, y: torch._scaled_mm(x, y, *TENSOR, scale_result=TENSOR[0]).float(), x, y, host=("aten._scaled_mm.default",))


@pytest.mark.parametrize("rows", [False, True])
def test_functional_scaled_mm(rows: bool) -> None:
    recipe = F.ScalingType.RowWise if rows else F.ScalingType.TensorWise
    scales = ROWS if rows else TENSOR
    x, y = operands()

    def fn(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.scaled_mm(x, y, a, recipe, b, recipe, output_dtype=torch.float32)

    close_to_exact(check_native(fn, x, y, *scales, rtol=1e-5, atol=1e-4), exact(x, y, *scales))


def test_dynamic_quantisation_of_a_linear_layer() -> None:
    """What a float8 training recipe does by hand: scale to the range, cast, multiply, scale back."""

    def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax().clamp(min=1e-12) / 448.0
        return (x / scale).to(E4M3), scale

    def fn(x: Tensor, w: Tensor) -> Tensor:
        (a, scale_a), (b, scale_b) = scaled(x), scaled(w)
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.float32)

    x, w = torch.randn(16, 32) * 30, torch.randn(64, 32) * 0.02
    actual = check_native(fn, x, w, rtol=1e-4, atol=1e-4)
    assert (actual - x @ w.t()).norm() / (x @ w.t()).norm() < 0.05
