"""Matrix exponential against eager and float64: norms from tiny to large, batches, complex, not finite."""

import pytest
import torch

from tests.lowering.opcheck import check


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("norm", [1e-8, 0.3, 2.0, 20.0])
def test_norms(dtype: torch.dtype, norm: float) -> None:
    x = torch.randn(3, 5, 5, dtype=dtype)
    x = x / torch.linalg.matrix_norm(x, 1)[:, None, None] * norm
    x = x - x.mT.conj()  # whose exponential is unitary, so that no error is hidden by growth
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = torch.matrix_exp(x.to(wide)).to(dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype.itemsize // (1 + dtype.is_complex) == 4 else {"rtol": 1e-11, "atol": 1e-12}
    check(torch.matrix_exp, x, **tolerance)
    torch.testing.assert_close(torch.matrix_exp(x), exact, **tolerance)


def test_each_matrix_of_a_batch_is_squared_as_it_needs() -> None:
    x = torch.stack([torch.eye(4) * k for k in (0.0, 1e-3, 1.0, 30.0)])
    check(torch.matrix_exp, x, rtol=4e-6, atol=1e-5)  # exp(30) has a condition number of 30


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (0, 3, 3), (2, 1, 1), (2, 2)])
def test_small_and_empty(shape: tuple[int, ...]) -> None:
    check(torch.matrix_exp, torch.randn(shape))


def test_not_finite() -> None:
    check(lambda x: torch.matrix_exp(x).isnan(), torch.full((2, 2), torch.nan))


def test_gradient() -> None:
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(torch.matrix_exp, backend="neuron", fullgraph=True)
    (mine,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(mine, torch.autograd.grad(torch.matrix_exp(x).sum(), x)[0])
