"""Factorizations and what is solved with them against eager PyTorch: batches, empty, singular and rectangular matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from neuron_dynamo.target import get_target
from tests.lowering.opcheck import check

DTYPES = [torch.float32, torch.float64, torch.complex64]
SHAPES = [(4, 4), (2, 5, 3), (3, 5), (0, 4, 4), (2, 0, 3), (1, 1)]


def _matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def _well_conditioned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return _matrix(*shape, dtype=dtype) + 4 * torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_lu_and_qr_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = _matrix(*shape, dtype=dtype)
    modes = ("reduced", "complete", "r")
    check(lambda a: (torch.linalg.lu_factor_ex(a), torch.linalg.lu(a), torch.geqrf(a), [torch.linalg.qr(a, mode) for mode in modes]), a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_reads_one_triangle(dtype: torch.dtype) -> None:
    a = _matrix(2, 5, 5, dtype=dtype)
    a = a @ a.mH + torch.eye(5, dtype=dtype)
    check(lambda a: (torch.linalg.cholesky_ex(a), torch.linalg.cholesky_ex(a, upper=True)), a + _matrix(5, 5, dtype=dtype).triu(1) * 0)
    check(lambda a: torch.linalg.cholesky_ex(a), a.tril())
    check(lambda a: torch.linalg.cholesky_ex(a, upper=True), a.triu())


def test_info_names_the_first_failure() -> None:
    indefinite = torch.tensor([[4.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    check(lambda a: torch.linalg.cholesky_ex(a).info, torch.stack([indefinite, torch.eye(3), -torch.eye(3), torch.full((3, 3), torch.nan)]))
    singular = torch.tensor([[4.0, 2.0, 1.0], [2.0, 1.0, 3.0], [0.0, 0.0, 2.0]])  # no step rounds
    check(lambda a: torch.linalg.lu_factor_ex(a), torch.stack([singular, torch.zeros(3, 3)]))
    check(lambda a: (torch.linalg.det(a), torch.linalg.slogdet(a)), torch.stack([torch.eye(3).flip(0), torch.zeros(3, 3)]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_solvers(dtype: torch.dtype) -> None:
    a, y = _well_conditioned(2, 4, 4, dtype=dtype), _matrix(4, 3, dtype=dtype)

    def fn(a: torch.Tensor, lu: torch.Tensor, pivots: torch.Tensor, y: torch.Tensor) -> list[object]:
        made: list[object] = [torch.linalg.solve_ex(a, y), torch.linalg.inv_ex(a), torch.linalg.det(a), torch.linalg.slogdet(a)]
        for flag in (False, True):
            made.append(torch.linalg.solve_triangular(a, y, upper=flag))
            made.append(torch.linalg.solve_triangular(a, y.mT, upper=flag, left=False, unitriangular=True))
            made.append(torch.linalg.lu_solve(lu, pivots, y, adjoint=flag))
            made.append(torch.linalg.lu_solve(lu, pivots, y.mT, left=False, adjoint=flag))
        return made

    check(fn, a, *torch.linalg.lu_factor(a), y)


def test_products_of_reflectors() -> None:
    stored, tau = torch.geqrf(_matrix(2, 5, 3))
    c = _matrix(2, 5, 5)
    ways = [(left, transpose) for left in (False, True) for transpose in (False, True)]
    check(lambda s, t, c: (torch.linalg.householder_product(s, t), [torch.ormqr(s, t, c, *way) for way in ways]), stored, tau, c)


@pytest.mark.parametrize("call", [torch.linalg.inv, torch.linalg.cholesky, lambda a: torch.linalg.solve(a, a)])
def test_singular_input_raises_what_eager_raises(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    _refused_alike(call, torch.zeros(3, 3))


def test_svd_refuses_what_is_not_finite() -> None:
    for call in (torch.linalg.svdvals, lambda a: torch.linalg.svd(a)[1]):
        _refused_alike(call, torch.full((3, 3), torch.nan))


def _refused_alike(call: Callable[[torch.Tensor], torch.Tensor], bad: torch.Tensor) -> None:
    with pytest.raises(torch.linalg.LinAlgError) as eager:
        call(bad)
    compiled = torch.compile(lambda a: call(a), backend="neuron", fullgraph=True)
    with pytest.raises(torch.linalg.LinAlgError) as ours:
        compiled(bad)
    assert str(ours.value) == str(eager.value)
    good = _well_conditioned(3, 3)
    good = good @ good.mT
    torch.testing.assert_close(compiled(good), call(good))


def test_target_without_loops_writes_them_out() -> None:
    """The forms for targets without cholesky, triangular_solve and while, run on the host."""
    import dataclasses

    from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
    from tests.lowering import opcheck

    bare = dataclasses.replace(get_target("host"), ops=frozenset())
    a, y = _well_conditioned(2, 4, 4), _matrix(2, 4, 3)

    def fn(a: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.linalg.solve_ex(a, y)[0], *torch.linalg.qr(a), torch.linalg.cholesky_ex(a @ a.mT)[0]

    program = lower(opcheck.trace(fn, [a, y]).graph, bare)
    text = stablehlo_text(program.stablehlo)
    assert "stablehlo.while" not in text and "triangular_solve" not in text
    torch.testing.assert_close(tuple(opcheck.run(program, [a, y])), fn(a, y))
