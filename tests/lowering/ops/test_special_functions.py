"""Special functions against eager PyTorch, over ordinary arguments, zeros, poles, branch points, infinities and NaN."""

import math

import pytest
import torch

from tests.lowering.opcheck import check

EDGES = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    2.0,
    -2.0,
    5.0,
    8.0,
    1e-6,
    -1e-6,
    1e-30,
    0.5,
    -0.5,
    50.0,
    -3.0,
    -4.0,
    -27.0,
    -6.1,
]
EDGES += [-6.2, 10.0, -10.0, 88.0, 89.0, 100.0, -100.0, 103.9, 0.3, -0.3, 2.09, -2.09, 8.33, 1e5, 1e30]


def _arguments(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(60, generator=generator, dtype=torch.float64)
    uniform = torch.rand(40, generator=generator, dtype=torch.float64)
    return torch.cat([torch.tensor(EDGES, dtype=torch.float64), normal, normal * 10, uniform]).to(dtype)


NAMES = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "spherical_bessel_j0",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "erfcx",
    "log_ndtr",
    "ndtri",
    "ndtr",
    "digamma",
    "gammaln",
    "erfinv",
    "entr",
]
POLYNOMIALS = [name for name in dir(torch.special) if "polynomial" in name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_unary(dtype: torch.dtype) -> None:
    check(lambda x: tuple(getattr(torch.special, name)(x) for name in NAMES), _arguments(dtype))


def test_low_precision_and_integers() -> None:
    x = _arguments(torch.float32)
    check(torch.special.i0, x.bfloat16())
    check(torch.special.i1e, torch.arange(-5, 12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ndtri_in_its_domain(dtype: torch.dtype) -> None:
    check(torch.special.ndtri, torch.tensor([1e-20, 1e-10, 0.01, 0.13, 0.14, 0.3, 0.5, 0.7, 0.86, 0.87, 1 - 1e-6, 0.0, 1.0], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_polygamma(dtype: torch.dtype) -> None:
    check(lambda x: tuple(torch.polygamma(order, x) for order in (0, 1, 2, 5)), _arguments(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zeta(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 1.5, 30.0, 1000.0, 0.5, 0.0, -1.0, math.inf, math.nan], dtype=dtype)
    q = [0.0, -0.0, 1.0, 0.5, -0.5, -1.0, -2.3, 9.0, 9.5, 100.0, 1e10, 0.01, math.inf, math.nan, -3.999, -30.5]
    check(torch.special.zeta, *torch.meshgrid(x, torch.tensor(q, dtype=dtype), indexing="ij"))


def test_incomplete_gamma() -> None:
    a = torch.tensor([0.0, 1.0, 2.0, 1.5, 0.3, 0.05, 5.0, 19.0, 25.0, 150.0, 201.0, 1000.0, 1e4, -1.0, math.inf, math.nan])
    x = [
        0.0,
        0.01,
        0.3,
        0.7,
        1.0,
        1.05,
        1.2,
        2.0,
        5.0,
        19.0,
        22.0,
        30.0,
        60.0,
        140.0,
        190.0,
        260.0,
        990.0,
        1.01e4,
        -1.0,
        math.inf,
        math.nan,
    ]
    grids = torch.meshgrid(a, torch.tensor(x), indexing="ij")
    check(torch.special.gammainc, *grids)
    check(torch.special.gammaincc, *(g.double() for g in grids))


def _all_polynomials(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(getattr(torch.special, name)(x, n) for name in POLYNOMIALS)


def test_polynomials() -> None:
    """Without NaN, of which eager returns an uninitialised variable."""
    x = torch.tensor([1.0, -1.0, 0.0, -0.0, 2.0, -2.0, 0.5, 0.3, -0.9, 0.99, math.inf], dtype=torch.float64)
    n = torch.cat([torch.arange(-2, 13, dtype=torch.float64), torch.tensor([0.5, 3.7, -0.5, 40.0])])
    check(_all_polynomials, *torch.meshgrid(x, n, indexing="ij"))


def test_polynomials_of_scalars_and_integers() -> None:
    x = torch.tensor([0.5, -0.25, 2.0])
    check(lambda x: (torch.special.legendre_polynomial_p(x, 3), torch.special.chebyshev_polynomial_t(x, 9)), x)
    check(lambda n: torch.special.hermite_polynomial_h(0.3, n), torch.arange(9))
    assert torch.special.legendre_polynomial_p(x, 3)[0].item() == -0.4375


def test_hermite_gives_up_where_eager_does() -> None:
    check(torch.special.hermite_polynomial_he, torch.full((2,), 0.01), torch.tensor([128.0, 129.0]))
