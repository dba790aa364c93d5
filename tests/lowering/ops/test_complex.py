"""Complex numbers against eager PyTorch: finite values, branch cuts, non-finite values, and gradients."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import neuron_dynamo
from neuron_dynamo import report
from tests.lowering.opcheck import check

INF, NAN = math.inf, math.nan
C64, C128 = torch.complex64, torch.complex128
MATRIX = torch.complex(torch.linspace(-2, 3, 12), torch.linspace(4, -1, 12)).reshape(3, 4)


def grid(*values: float) -> list[complex]:
    return [complex(a, b) for a in values for b in values]


PLANE = [cmath.rect(r, a) for r in (1e-6, 0.3, 1.0, 1.7, 12.0) for a in (0.1, 1.2, 2.0, 3.1, -0.7, -1.5, -2.9)]
CUTS = grid(0.0, -0.0, 0.5, -0.5, 2.0, -2.0)
FUNCTIONS = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "sigmoid", "reciprocal", "square", "abs", "angle", "sgn", "neg", "isnan", "isinf",
    "isfinite", "isreal", "conj_physical", "positive", "logical_not",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [C64, C128])
@pytest.mark.parametrize("names", [FUNCTIONS[::2], FUNCTIONS[1::2]], ids=["some", "others"])
def test_functions(names: list[str], dtype: torch.dtype) -> None:
    check(lambda x: [getattr(torch, name)(x) for name in names], torch.tensor(PLANE, dtype=dtype))


def test_branch_cuts_follow_the_sign_of_zero() -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        values = [getattr(torch, name)(x) for name in ("sqrt", "log", "asin", "atan", "asinh", "acosh", "atanh")]
        signs = [torch.signbit(part) for value in values for part in (value.real, value.imag)]
        return [*values, *signs, x.acos(), x.angle()]  # eager's acos loses the sign of a zero, off the cut

    check(fn, torch.tensor(CUTS, dtype=C128))


def test_non_finite() -> None:
    names = ["exp", "exp2", "log", "log2", "log10", "sqrt", "cos", "sinh", "cosh", "tanh", "abs", "isinf", "isfinite"]
    values = [z for z in grid(0.0, 1.0, -2.0, INF, -INF, NAN) if not cmath.isfinite(z)]

    def parts(x: torch.Tensor) -> Any:
        results = [getattr(torch, name)(x) for name in names]
        # Compares each part, where an infinite modulus would hide one.
        return [torch.view_as_real(y) if y.is_complex() else y for y in results]

    check(parts, torch.tensor(values, dtype=C128))


@pytest.mark.parametrize("fn", [torch.mul, torch.div])
def test_products_and_quotients_of_extremes(fn: Callable[..., torch.Tensor]) -> None:
    values = grid(0.0, -0.0, 1.0, -2.0, 2.0**300, 2.0**-300, INF, NAN)  # powers of two: a fused multiply-add rounds them alike
    x = torch.tensor([a for a in values for _ in values], dtype=C128)
    y = torch.tensor([b for _ in values for b in values], dtype=C128)
    check(lambda x, y: torch.view_as_real(fn(x, y)), x, y)


def test_small_arguments_keep_their_digits() -> None:
    x = torch.tensor([1e-6 + 1e-7j, -1e-6j, 3e-8 + 0j, -2e-7 - 5e-8j], dtype=C64)
    exact = {name: getattr(torch, name)(x.to(C128)).to(C64) for name in ("expm1", "log1p", "sin", "sinh", "tanh", "asin", "atanh")}
    check(lambda x: [torch.view_as_real(getattr(torch, name)(x) / exact[name]) for name in exact], x, rtol=3e-7, atol=3e-7)


def test_abs_does_not_overflow() -> None:
    check(torch.abs, torch.tensor([3e38 + 1e38j, 3e-30 + 4e-30j]))


def test_powers() -> None:
    base = torch.tensor([*PLANE, 0j, 1 + 0j], dtype=C64)
    check(lambda x: [x**e for e in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 4, 1.5, 2 - 1j, 0j)], base)
    check(lambda x, y: x**y, base, torch.tensor([1.5, -0.5 + 1j, 2j], dtype=C64)[:, None])
    check(lambda x: (2.0**x, (1j) ** x, 0**x), base[:-2])
    check(lambda x, y: x**y, torch.tensor([0j, 0j, 0j, 0j]), torch.tensor([0j, 1j, 2 + 1j, -1 + 0j]))
    check(lambda x, y: (x**y, y**x), torch.tensor([1.5, 2.0]), torch.tensor([1 + 1j, 2 - 1j]))


def test_parts_and_conjugates() -> None:
    check(lambda x: (x.real, x.imag, x.conj(), x.conj().imag, x.mH, torch.view_as_real(x), torch.is_complex(x)), MATRIX)
    check(lambda x: (x.conj().resolve_conj(), x.conj() @ x.T, x.imag.neg(), torch.resolve_neg(x.conj().imag) * 2), MATRIX)
    check(
        lambda x, y: (torch.complex(x, y), torch.polar(x, y), torch.view_as_complex(torch.stack([x, y], -1))), torch.rand(3), torch.rand(3)
    )
    check(lambda x: (torch.view_as_real(x), x.real, x.sgn()), torch.zeros(0, 3, dtype=C64))


def test_promotion_and_conversion() -> None:
    real, whole = torch.tensor([1.5, -2.0, 0.0]), torch.tensor([1, 0, -3])
    z = torch.tensor([1 + 2j, 0j, -1j])
    check(lambda r, w, z: (r + z, w * z, r - 2j, w / z, z / 2, z * 2.5, z * True, w + (1 + 0j)), real, whole, z)
    check(lambda z: (z.to(C128), z.bool(), z.to(C128).to(C64), z == 0, z != 0j, z.logical_not()), z)
    check(lambda r, w: (r.to(C64), w.to(C128), r.double().to(C64), r.bool().to(C64)), real, whole)
    check(lambda z: (torch.where(z == 0, z, 2), torch.full_like(z, 1 - 2j), torch.ones_like(z), z.masked_fill(z == 0, 3j)), z)
    check(lambda z: (torch.nan_to_num(z.real), torch.isclose(z, z + 1e-9)), z)


def test_reductions_and_scans() -> None:
    check(lambda x: (x.sum(), x.sum(1), x.mean(0), x.prod(1), x.cumsum(0), x.cumprod(1), x.sum(0, keepdim=True)), MATRIX)
    check(lambda x: (x.var(), x.std(1), x.var(0, correction=0), torch.var_mean(x, 1)), MATRIX)
    check(lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3, INF, -INF)], MATRIX)
    check(lambda x: (x.logsumexp(1), torch.logcumsumexp(x, 1), x.any(), x.all(0), torch.count_nonzero(x)), MATRIX)
    check(lambda x: (x.sum(), x.prod(), x.mean()), torch.zeros(0, dtype=C64))


def test_products() -> None:
    square, vector = MATRIX @ MATRIX.mT, MATRIX[0]
    check(lambda a, s, v: (a @ a.mH, s.mv(s[0]), torch.addmm(s, a, a.mT, beta=1j, alpha=2 - 1j), torch.outer(v, v)), MATRIX, square, vector)
    check(lambda v, w: (torch.dot(v, w), torch.vdot(v, w), torch.linalg.vecdot(v, w), torch.inner(v, w)), vector, MATRIX[1])
    check(lambda a: (torch.einsum("ij,kj->ik", a, a.conj()), torch.kron(a, a), torch.addr(a, a[:, 0], a[0])), MATRIX)
    batch = torch.randn(2, 3, 3, dtype=C64)
    check(lambda x: (torch.bmm(x, x), torch.baddbmm(x, x, x.conj(), beta=2j)), batch)


def test_moves() -> None:
    index = torch.tensor([[2, 0, -1, 1]]) % 3
    check(lambda x: (x.roll(1, 0), x.flip(1), x.tril(), x.triu(1), torch.cat([x, x]), x[:, 1::2], torch.diag(x)), MATRIX)
    check(
        lambda x, i: (x.gather(0, i), x.scatter(0, i, x[:1]), x.scatter_add(0, i, x[:1]), x[i[0]], x.index_add(0, i[0], x[i[0]])),
        MATRIX,
        index,
    )
    check(
        lambda x: (torch.nn.functional.pad(x, (1, 2), value=1.5), x.repeat(2, 1), x.masked_fill(x.real > 0, 0), x.lerp(2 * x, 0.3)), MATRIX
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution(rank: int) -> None:
    conv = getattr(torch.nn.functional, f"conv{rank}d")
    x, w = torch.randn(2, 4, *[6] * rank, dtype=C64), torch.randn(6, 2, *[3] * rank, dtype=C64)
    check(lambda x, w: conv(x, w, stride=2, padding=1, groups=2), x, w, rtol=1e-4, atol=1e-4)


GRADIENTS: dict[str, Callable[..., torch.Tensor]] = {
    "abs": torch.abs, "angle": torch.angle, "sgn": torch.sgn, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "sin": torch.sin,
    "tanh": torch.tanh, "acos": torch.acos, "sigmoid": torch.sigmoid, "reciprocal": torch.reciprocal, "pow": lambda x: x ** (1.5 - 1j),
    "prod": lambda x: x.prod(), "cumprod": lambda x: x.cumprod(0), "norm": lambda x: torch.linalg.vector_norm(x),
    "std": lambda x: x.std(), "matmul": lambda x: x.reshape(5, 7) @ x.reshape(5, 7).mH, "div": lambda x: x / x.conj().roll(1),
    "real": lambda x: x.real * x.imag, "polar": lambda x: torch.polar(x.real, x.imag), "complex": lambda x: torch.complex(x.imag, x.real),
}  # fmt: skip


def test_gradients_are_conjugate_wirtinger() -> None:
    def gradients(x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        results = [fn(x) for fn in GRADIENTS.values()]
        return [torch.autograd.grad(y, x, torch.ones_like(y))[0] for y in results]

    check(gradients, torch.tensor(PLANE, dtype=C128))


def compiled_natively(fn: Callable[..., Any], *args: Any) -> Any:
    """fn compiled, after a check that every op was native."""
    torch._dynamo.reset()
    report.clear()
    return torch.compile(fn, backend="neuron", fullgraph=True)(*args)


def all_native() -> bool:
    found = neuron_dynamo.reports()
    return bool(found) and all(r.host == 0 and r.native > 0 for r in found)


def test_lazy_bits_of_inputs_and_outputs() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, x.conj() @ x.mT, x.imag, y + 1, x.conj(), (x * 3j).conj(), (x + 1).imag

    x, neg = MATRIX.conj(), MATRIX.conj().imag
    assert x.is_conj() and neg.is_neg()
    torch.testing.assert_close(compiled_natively(fn, x, neg), fn(x, neg))
    x = MATRIX.clone()
    torch.testing.assert_close(torch.compile(fn, backend="neuron", fullgraph=True)(x, neg.resolve_neg()), fn(x, neg))


def test_an_input_with_a_conjugate_bit_is_written() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.mul_(1j)
        return x + 1

    ours, theirs = MATRIX.clone(), MATRIX.clone()
    torch.testing.assert_close(compiled_natively(fn, ours.conj()), fn(theirs.conj()))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore")
def test_complex32_runs_on_the_host() -> None:
    x = torch.tensor([1 + 2j, -3j], dtype=torch.complex32)
    torch.testing.assert_close(compiled_natively(lambda x: x.to(C64) * 2, x), x.to(C64) * 2)
    assert sum(r.host for r in neuron_dynamo.reports()) >= 1


class Rope(torch.nn.Module):
    """Attention with rotary embeddings as complex multiplication, as Llama's reference code has it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.query, self.key = (torch.nn.Linear(16, 16, dtype=dtype) for _ in range(2))

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        turned = []
        for layer in (self.query, self.key):
            pairs = torch.view_as_complex(layer(x).reshape(batch, length, 2, 4, 2))
            turned.append(torch.view_as_real(pairs * turns[:length].view(1, length, 1, 4)).flatten(3).transpose(1, 2))
        value = x.view(batch, length, 2, 8).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(*turned, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotary_embedding_trains_natively(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Rope(dtype), torch.randn(2, 6, 16, dtype=dtype, requires_grad=True)
    turns = torch.polar(torch.ones(10, 4, dtype=dtype), torch.rand(10, 4, dtype=dtype))
    wanted = (*model.parameters(), x)
    expected = torch.autograd.grad(model(x, turns).square().sum(), wanted)
    actual = torch.autograd.grad(compiled_natively(model, x, turns).square().sum(), wanted)
    torch.testing.assert_close(actual, expected)
    assert all_native() and {r.kind for r in neuron_dynamo.reports()} == {"forward", "backward"}
