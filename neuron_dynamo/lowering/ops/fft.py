"""Discrete Fourier transforms as stablehlo.fft. Definitions: aten::_fft_c2c, _fft_r2c and _fft_c2r, to which torch.fft comes down.

stablehlo.fft transforms up to three innermost dims, so the dims of a transform are moved there, by threes. Its inverse kinds divide
by the number of elements, which the norm mode then puts right in one multiplication.

Targets without complex numbers (Trainium) have no fft either: for them passes/complex_pairs.py writes complex graphs over pairs of
real tensors, before lowering, and a transform there is a product with two real matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.ops.complex_math import conjugate, join, parts
from neuron_dynamo.lowering.registry import lowering

aten = torch.ops.aten

_AT_ONCE = 3
_BY_ROOT_N, _BY_N = 1, 2


def norm_factor(n: int, normalization: int) -> float:
    """What ATen's norm mode (none, by the root of n, by n) multiplies an unscaled transform of n elements by."""
    return {_BY_ROOT_N: 1 / math.sqrt(n), _BY_N: 1 / n}.get(normalization, 1.0)


def _rescaled(b: Builder, x: Value, factor: float) -> Value:
    """x * factor, part by part."""
    if abs(factor - 1) < 1e-15:
        return x
    if not x.dtype.is_complex:
        return b.mul(x, b.like(x, factor))
    real, imag = parts(b, x)
    return join(b, b.mul(real, b.like(real, factor)), b.mul(imag, b.like(imag, factor)))


def _emit(b: Builder, kind: str, x: Value, lengths: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> Value:
    attributes = {"fft_type": mlir.parse(f"#stablehlo<fft_type {kind}>"), "fft_length": mlir.i64s(lengths)}
    return b.emit("fft", [x], shape, dtype, attributes)


def _innermost(x: Value, dims: Sequence[int]) -> list[int]:
    """The permutation that moves `dims`, in this order, behind all others."""
    return [d for d in range(x.ndim) if d not in dims] + list(dims)


def _inverse_permutation(perm: Sequence[int]) -> list[int]:
    return [perm.index(d) for d in range(len(perm))]


def _c2c(b: Builder, x: Value, dims: Sequence[int], forward: bool) -> Value:
    """Complex transform over `dims`: unscaled forward, divided by the number of elements backward."""
    dims = [d for d in dims if x.shape[d] > 1]
    for at in range(0, len(dims), _AT_ONCE):
        some = dims[at : at + _AT_ONCE]
        perm = _innermost(x, some)
        inner = b.transpose(x, perm)
        made = _emit(b, "FFT" if forward else "IFFT", inner, [x.shape[d] for d in some], inner.shape, x.dtype)
        x = b.transpose(made, _inverse_permutation(perm))
    return x


@lowering(aten._fft_c2c.default)
def fft_c2c(b: Builder, x: Value, dim: Sequence[int], normalization: int, forward: bool) -> Value:
    if x.numel == 0:
        return x
    dims = [d % x.ndim for d in dim]
    n = math.prod(x.shape[d] for d in dims)
    factor = norm_factor(n, normalization) * (1 if forward else n)
    return _rescaled(b, _c2c(b, x, dims, forward), factor)


@lowering(aten._fft_r2c.default)
def fft_r2c(b: Builder, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Value:
    """Forward transform of real numbers; `onesided` keeps the first half of the last of `dim`, the rest being its mirror image."""
    if b.out.shape.count(0):
        return b.full(b.out.shape, 0, b.out.dtype)
    dims = [d % x.ndim for d in dim]
    n = math.prod(x.shape[d] for d in dims)
    last, length = dims[-1], x.shape[dims[-1]]
    # The real transform takes some of the other dims along where all of its result is wanted.
    along = dims[-_AT_ONCE:] if onesided else [last]
    perm = _innermost(x, along)
    inner = b.transpose(x, perm)
    shape = (*inner.shape[:-1], length // 2 + 1)
    made = _emit(b, "RFFT", inner, [x.shape[d] for d in along], shape, b.out.dtype)
    if not onesided:
        made = _mirrored(b, made, length)
    result = b.transpose(made, _inverse_permutation(perm))
    return _rescaled(b, _c2c(b, result, [d for d in dims if d not in along], True), norm_factor(n, normalization))


def _mirrored(b: Builder, half: Value, length: int) -> Value:
    """All `length` coefficients along the last dim, of which a real signal's transform gives the first half."""
    last = half.ndim - 1
    rest = length - half.shape[last]
    if rest == 0:
        return half
    mirror = conjugate(b, b.reverse(b.slice_dim(half, last, 1, 1 + rest), [last]))
    return b.concat([half, mirror], last)


@lowering(aten._fft_c2r.default)
def fft_c2r(b: Builder, x: Value, dim: Sequence[int], normalization: int, last_dim_size: int) -> Value:
    """Inverse transform of the first half, along the last of `dim`, of a signal's coefficients. The imaginary parts of the constant
    and, for an even size, of the highest coefficient are not read."""
    if b.out.shape.count(0):
        return b.full(b.out.shape, 0, b.out.dtype)
    dims = [d % x.ndim for d in dim]
    x = b.slice_dim(x, dims[-1], 0, last_dim_size // 2 + 1)
    n = math.prod([*(x.shape[d] for d in dims[:-1]), last_dim_size])
    x = _c2c(b, x, dims[:-1], False)
    perm = _innermost(x, dims[-1:])
    inner = b.transpose(x, perm)
    made = _emit(b, "IRFFT", inner, [last_dim_size], (*inner.shape[:-1], last_dim_size), b.out.dtype)
    return _rescaled(b, b.transpose(made, _inverse_permutation(perm)), norm_factor(n, normalization) * n)


def _frequencies(b: Builder, n: int, spacing: float, first_negative: int) -> Value:
    """k / (n * spacing) for each place of the result, with k counted from -n from `first_negative` on."""
    k = b.iota(b.out.shape, 0, torch.int64)
    if first_negative < b.out.shape[0]:
        k = b.select(b.compare("GE", k, b.like(k, first_negative)), b.sub(k, b.like(k, n)), k)
    wide = b.convert(k, compute_dtype(b.out.dtype))
    return b.convert(b.mul(wide, b.like(wide, 1 / (n * spacing))), b.out.dtype)


@lowering(aten.fft_fftfreq.default)
def fftfreq(b: Builder, n: int, d: float = 1.0, **_: Any) -> Value:
    return _frequencies(b, n, d, (n + 1) // 2)


@lowering(aten.fft_rfftfreq.default)
def rfftfreq(b: Builder, n: int, d: float = 1.0, **_: Any) -> Value:
    return _frequencies(b, n, d, b.out.shape[0])
