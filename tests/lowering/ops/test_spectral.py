"""SVD and Hermitian eigenvalues: values against float64, vectors by reconstruction and orthogonality, also of degenerate input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from neuron_dynamo.lowering.pipeline import lower
from neuron_dynamo.target import get_target
from tests.lowering import opcheck


def _run(fn: Callable[[torch.Tensor], object], a: torch.Tensor) -> list[torch.Tensor]:
    return opcheck.run(lower(opcheck.trace(fn, [a]).graph, get_target("host")), [a])


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
@pytest.mark.parametrize("name", _cases(torch.float32))
def test_svd_and_eigh(name: str, dtype: torch.dtype) -> None:
    a = _cases(dtype)[name]
    wide, near = torch.promote_types(dtype, torch.float64), 100 * torch.finfo(dtype).eps
    scale = max(float(a.abs().max()), 1e-38)
    exact = a.to(wide) / scale
    k = min(a.shape[-2:])
    u, s, v = (t.to(wide) if t.is_complex() else t.double() for t in _run(lambda a: torch.linalg.svd(a), a))
    for q in (u, v):
        torch.testing.assert_close(q.mH @ q, torch.eye(q.shape[-1], dtype=q.dtype).expand_as(q), rtol=0, atol=near)
    back = (u[..., :k].to(wide) * (s / scale).unsqueeze(-2)) @ v[..., :k, :].to(wide)
    torch.testing.assert_close(back, exact, rtol=0, atol=near)
    torch.testing.assert_close(s / scale, torch.linalg.svdvals(exact), rtol=0, atol=near)
    if a.shape[-1] != a.shape[-2]:
        return
    hermitian = (a + a.mH) / 2
    w, x = (t.to(wide) if t.is_complex() else t.double() for t in _run(lambda a: torch.linalg.eigh(a), hermitian))
    torch.testing.assert_close((x * (w / scale).unsqueeze(-2)) @ x.mH, hermitian.to(wide).to(x.dtype) / scale, rtol=0, atol=near)
    torch.testing.assert_close(w / scale, torch.linalg.eigvalsh(hermitian.to(wide) / scale), rtol=0, atol=near)


def test_what_is_built_on_it() -> None:
    a = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))
    opcheck.check(lambda a: (torch.linalg.pinv(a), torch.linalg.cond(a), torch.linalg.matrix_rank(a), a.norm("nuc", (-2, -1))), a)
    opcheck.check(lambda a: torch.linalg.svdvals(a), torch.empty(0, 3))
