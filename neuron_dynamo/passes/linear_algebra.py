"""Decompositions of linear algebra into factorizations that have rules (lowering/ops/{cholesky,lu,householder}.py), after
aten/src/ATen/native/{LinearAlgebra,BatchLinearAlgebra}.cpp. PyTorch has none of its own.

Like ATen, `det` and `slogdet` factor the transpose of a contiguous real matrix, `solve` and `inv` the matrix: the backward
formulas, which read the factors, and the text of errors depend on it. Errors of singular inputs are raised by
`_linalg_check_errors`, which stays in the graph and runs on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def linear_algebra_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    return {
        aten.cholesky.default: cholesky,
        aten.cholesky_inverse.default: cholesky_inverse,
        aten.cholesky_solve.default: cholesky_solve,
        aten.triangular_solve.default: triangular_solve,
        aten.linalg_lu.default: linalg_lu,
        aten._linalg_solve_ex.default: linalg_solve_ex,
        aten.linalg_inv_ex.default: linalg_inv_ex,
        aten._linalg_det.default: linalg_det,
        aten._linalg_slogdet.default: linalg_slogdet,
        aten.linalg_qr.default: linalg_qr,
        aten.linalg_pinv.atol_rtol_tensor: linalg_pinv,
        aten.addbmm.default: addbmm,
    }


def _check(info: Tensor, name: str, matrix: Tensor) -> None:
    aten._linalg_check_errors.default(info, name, is_matrix=matrix.ndim == 2)


def _eye_like(a: Tensor) -> Tensor:
    """Identity matrices [..., n, n] of a's batch dims."""
    return torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)


# Cholesky


def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(a, upper=upper)
    _check(info, "cholesky", a)
    return factor


def cholesky_solve(y: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """x with a x = y, for a = L L^H or (upper) U^H U."""
    lower = factor.mH if upper else factor
    half = torch.linalg.solve_triangular(lower, y, upper=False)
    x: Tensor = torch.linalg.solve_triangular(lower.mH, half, upper=True)
    return x


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a = L L^H or (upper) U^H U; raises where the diagonal has a zero."""
    n = factor.shape[-1]
    if n and factor.numel():
        zero = factor.diagonal(dim1=-2, dim2=-1) == 0
        order = torch.arange(1, n + 1, dtype=torch.int32, device=factor.device)
        first = torch.where(zero, order, n + 1).amin(-1)
        _check(torch.where(first > n, 0, first).to(torch.int32), "cholesky_inverse", factor)
    return cholesky_solve(_eye_like(factor), factor, upper)


def triangular_solve(
    y: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    matrix = a.mT if transpose else a
    x = torch.linalg.solve_triangular(matrix, y, upper=upper != transpose, unitriangular=unitriangular)
    return x, a.expand((*x.shape[:-2], *a.shape[-2:])).clone()


# LU


def linalg_lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(a, pivot=pivot)
    permutation, lower, upper = aten.lu_unpack.default(factors, pivots)
    return permutation, lower, upper


def linalg_solve_ex(a: Tensor, y: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    factors, pivots, info = aten.linalg_lu_factor_ex.default(a)
    if check_errors:
        _check(info, "torch.linalg.solve_ex", a)
    vector = y.ndim == 1 or (y.ndim == a.ndim - 1 and y.shape == a.shape[:-1])
    x = aten.linalg_lu_solve.default(factors, pivots, y.unsqueeze(-1) if vector else y, left=left)
    return x.squeeze(-1) if vector else x, factors, pivots, info


def linalg_inv_ex(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    factors, pivots, info = aten.linalg_lu_factor_ex.default(a)
    if check_errors:
        _check(info, "linalg.inv_ex", a)
    return aten.linalg_lu_solve.default(factors, pivots, _eye_like(a)), info


def _permutation_sign(pivots: Tensor) -> Tensor:
    """Whether the row exchanges are odd in number, as -1 or 1 (int64)."""
    own = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return 1 - 2 * ((pivots != own).sum(-1) % 2)


def _determinant_factors(a: Tensor) -> tuple[Tensor, Tensor]:
    """LU and pivots of a, or of its transpose where ATen takes that."""
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(a.mT if a.is_contiguous() and not a.is_complex() else a)
    return factors, pivots


def linalg_det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots = _determinant_factors(a)
    det = factors.diagonal(dim1=-2, dim2=-1).prod(-1) * _permutation_sign(pivots).to(a.dtype)
    return det, factors, pivots


def linalg_slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    factors, pivots = _determinant_factors(a)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    sign = diagonal.sgn().prod(-1) * _permutation_sign(pivots).to(a.dtype)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


# QR


def linalg_qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    stored, tau = aten.geqrf.default(a)
    rows = m if mode == "complete" else min(m, n)
    r = stored[..., :rows, :].triu()
    if mode == "r":
        return a.new_empty((0,)), r
    # Q has `rows` columns; those past n have no reflector.
    columns = stored[..., :rows] if rows <= n else torch.nn.functional.pad(stored, (0, rows - n))
    return aten.linalg_householder_product.default(columns, tau), r


# Pseudo-inverse


def linalg_pinv(a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    m, n = a.shape[-2:]
    if a.numel() == 0:
        return a.new_empty((*a.shape[:-2], n, m))
    kind = a.real.dtype if a.is_complex() else a.dtype
    default = torch.finfo(kind).eps * max(m, n)
    if rtol is None:
        least = torch.full((), default, dtype=torch.float64, device=a.device)
        rtol = least if atol is None else torch.where(atol > 0, torch.zeros_like(least), least)
    if atol is None:
        atol = torch.zeros((), dtype=torch.float64, device=a.device)
    if hermitian:
        values, vectors = torch.linalg.eigh(a)
        size = values.abs()
        left, right = vectors, vectors.mH
    else:
        left_vectors, values, right_vectors = torch.linalg.svd(a, full_matrices=False)
        size = values
        left, right = right_vectors.mH, left_vectors.mH
    largest = size.amax(-1, keepdim=True)
    bound = torch.maximum(atol.unsqueeze(-1), rtol.unsqueeze(-1) * largest)
    inverse = torch.where(size > bound, values.reciprocal(), torch.zeros((), dtype=values.dtype, device=a.device)).to(a.dtype)
    return torch.matmul(left * inverse.unsqueeze(-2), right)


# Products


def addbmm(start: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * start + alpha * the sum over the batch of x @ y, as one product."""
    (batch, rows, inner), columns = x.shape, y.shape[2]
    wide, tall = x.transpose(0, 1).reshape(rows, batch * inner), y.reshape(batch * inner, columns)
    return torch.addmm(start, wide, tall, beta=beta, alpha=alpha)
