"""SVD and Hermitian eigenvalues: values against float64, vectors by reconstruction and orthogonality, also of degenerate input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from neuron_dynamo.lowering.pipeline import lower
from neuron_dynamo.target import get_target
from tests.lowering import opcheck


def _run(fn: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], matrices: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """fn of each matrix, in one program; the results in double precision."""

    def all_of_them(*matrices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(result for a in matrices for result in fn(a))

    flat = opcheck.run(lower(opcheck.trace(all_of_them, matrices).graph, get_target("host")), matrices)
    wide = [t.to(torch.complex128) if t.is_complex() else t.double() for t in flat]
    count = len(wide) // len(matrices)
    return [tuple(wide[i : i + count]) for i in range(0, len(wide), count)]


def _cases(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, generator=g)

    return {
        "tall batch": draw(2, 7, 4),
        "wide": draw(4, 9),
        "low rank": draw(8, 2) @ draw(2, 8),
        "equal values": torch.eye(5, dtype=dtype),
        "ones": torch.ones(6, 6, dtype=dtype),
        "zeros": torch.zeros(4, 3, dtype=dtype),
        "huge": draw(5, 5) * 1e30,
        "tiny": draw(5, 5) * 1e-30,
        "column": draw(5, 1),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_svd(dtype: torch.dtype) -> None:
    cases = _cases(dtype)
    for (name, a), (u, s, v) in zip(cases.items(), _run(torch.linalg.svd, list(cases.values())), strict=True):
        scale, exact = _scaled(a)
        k = min(a.shape[-2:])
        for q in (u, v):
            _close(q.mH @ q, torch.eye(q.shape[-1], dtype=q.dtype).expand_as(q), dtype, name)
        _close((u[..., :k] * (s / scale).unsqueeze(-2)) @ v[..., :k, :], exact, dtype, name)
        _close(s / scale, torch.linalg.svdvals(exact), dtype, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_eigh(dtype: torch.dtype) -> None:
    cases = {name: (a + a.mH) / 2 for name, a in _cases(dtype).items() if a.shape[-1] == a.shape[-2]}
    assert len(cases) == 5
    for (name, a), (w, x) in zip(cases.items(), _run(torch.linalg.eigh, list(cases.values())), strict=True):
        scale, exact = _scaled(a)
        _close((x * (w / scale).unsqueeze(-2)) @ x.mH, exact, dtype, name)
        _close(w / scale, torch.linalg.eigvalsh(exact), dtype, name)


def _scaled(a: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The largest modulus, and the matrix in double precision over it."""
    scale = max(float(a.abs().max()), 1e-38)
    return scale, a.to(torch.promote_types(a.dtype, torch.float64)) / scale


def _close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    near = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual, expected, rtol=0, atol=near, msg=lambda text: f"{name}: {text}")


def test_what_is_built_on_it() -> None:
    a = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))
    opcheck.check(lambda a: (torch.linalg.pinv(a), torch.linalg.cond(a), torch.linalg.matrix_rank(a), a.norm("nuc", (-2, -1))), a)
    opcheck.check(lambda a: torch.linalg.svdvals(a), torch.empty(0, 3))
