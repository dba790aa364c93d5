"""Ops on complex numbers as ops on pairs of real tensors: RULES maps an ATen op to a function over Pairs, tensors and numbers.

Definitions: PyTorch's documentation of each op. A Fourier transform is a product with the matrices of `dft_matrices`, one dim after
the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


class Unpaired(Exception):
    """This use of the op has no form over pairs."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Real and imaginary parts, of one shape and dtype; `origin` is the complex tensor that they are views of, if any."""

    real: Tensor
    imag: Tensor
    origin: Tensor | None = None


def _pair(x: Any) -> Pair:
    """A tensor or number as a Pair, of numbers for a number."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, Tensor):
        return Pair(x, torch.zeros_like(x))
    number = complex(x)
    return Pair(number.real, number.imag)  # type: ignore[arg-type]


def _both(op: Any) -> Callable[..., Any]:
    """For ops that treat the parts alike and apart."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        kwargs = _real_dtype(kwargs)

        def taken(value: Any, part: str) -> Any:
            if isinstance(value, (list, tuple)):
                some = any(isinstance(v, Pair) for v in value)
                return [getattr(_pair(v), part) if some else v for v in value]
            return getattr(value, part) if isinstance(value, Pair) else value

        real, imag = (op(*[taken(a, part) for a in args], **kwargs) for part in ("real", "imag"))
        if isinstance(real, Tensor):
            return Pair(real, imag)
        return [Pair(r, i) for r, i in zip(real, imag, strict=True)]

    return rule


def _writing(op: Any) -> Callable[..., Any]:
    """For ops that put a source, which may be real, into a complex tensor."""

    def rule(x: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Pair):
            raise Unpaired
        source = _pair(source)
        return Pair(*(op(into, part.to(into.dtype), *args, **kwargs) for into, part in ((x.real, source.real), (x.imag, source.imag))))

    return rule


def _real_dtype(kwargs: dict[str, Any]) -> dict[str, Any]:
    dtype = kwargs.get("dtype")
    return {**kwargs, "dtype": dtype.to_real()} if isinstance(dtype, torch.dtype) and dtype.is_complex else kwargs


def _abs(x: Pair) -> Tensor:
    return torch.hypot(x.real, x.imag)


def _conj(x: Any) -> Any:
    return Pair(x.real, -x.imag) if isinstance(x, Pair) else x


def _add(x: Any, y: Any, alpha: Any = 1) -> Pair:
    x, y = _pair(x), _pair(y if alpha == 1 else _mul(y, alpha))
    return Pair(x.real + y.real, x.imag + y.imag)


def _sub(x: Any, y: Any, alpha: Any = 1) -> Pair:
    x, y = _pair(x), _pair(y if alpha == 1 else _mul(y, alpha))
    return Pair(x.real - y.real, x.imag - y.imag)


def _mul(x: Any, y: Any) -> Any:
    if isinstance(y, complex):
        y = _pair(y)
    if not isinstance(x, Pair):
        x, y = y, x
    if not isinstance(x, Pair):
        return x * y
    if not isinstance(y, Pair):
        return Pair(x.real * y, x.imag * y)
    return Pair(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _div(x: Any, y: Any) -> Pair:
    """By Smith's method, so that nothing overflows on the way."""
    x = _pair(x)
    if isinstance(y, complex):
        return _pair(_mul(x, 1 / y))
    if not isinstance(y, Pair):
        return Pair(x.real / y, x.imag / y)
    wide = y.real.abs() >= y.imag.abs()
    larger, smaller = torch.where(wide, y.real, y.imag), torch.where(wide, y.imag, y.real)
    ratio = smaller / larger
    under = larger + smaller * ratio
    real = torch.where(wide, x.real + x.imag * ratio, x.real * ratio + x.imag) / under
    imag = torch.where(wide, x.imag - x.real * ratio, x.imag * ratio - x.real) / under
    zero, size = wide & (larger == 0), larger.abs()
    return Pair(torch.where(zero, x.real / size, real), torch.where(zero, x.imag / size, imag))


def _exp(x: Pair) -> Pair:
    size = torch.exp(x.real)
    return Pair(size * torch.cos(x.imag), torch.where(x.imag == 0, x.imag, size * torch.sin(x.imag)))


def _sgn(x: Pair) -> Pair:
    size = _abs(x)
    zero = size == 0
    return Pair(torch.where(zero, 0, x.real / size), torch.where(zero, 0, x.imag / size))


def _product(op: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Pair]:
    """For bilinear ops; three or fewer products where an operand is real, else four."""

    def rule(x: Any, y: Any) -> Pair:
        if not isinstance(x, Pair):
            return Pair(op(x, y.real), op(x, y.imag))
        if not isinstance(y, Pair):
            return Pair(op(x.real, y), op(x.imag, y))
        return Pair(op(x.real, y.real) - op(x.imag, y.imag), op(x.real, y.imag) + op(x.imag, y.real))

    return rule


_mm, _bmm, _mv, _dot = _product(torch.mm), _product(torch.bmm), _product(torch.mv), _product(torch.dot)


def _added_to(product: Callable[[Any, Any], Pair]) -> Callable[..., Any]:
    def rule(start: Any, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        made = _mul(product(x, y), alpha)
        return made if beta == 0 else _add(_mul(start, beta), made)

    return rule


def _same(x: Any, y: Any) -> Tensor:
    x, y = _pair(x), _pair(y)
    return torch.logical_and(x.real == y.real, x.imag == y.imag)


def _where(condition: Tensor, x: Any, y: Any) -> Pair:
    x, y = _pair(x), _pair(y)
    return Pair(torch.where(condition, x.real, y.real), torch.where(condition, x.imag, y.imag))


def _masked_fill(x: Pair, mask: Tensor, value: Any) -> Pair:
    value = _pair(value)
    return Pair(x.real.masked_fill(mask, value.real), x.imag.masked_fill(mask, value.imag))


def _convert(x: Any, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    dtype = args[0] if args else dtype
    if dtype is None:
        return x
    if not dtype.is_complex:
        return (x.real != 0) | (x.imag != 0) if dtype == torch.bool else x.real.to(dtype)
    x = _pair(x)
    return Pair(x.real.to(dtype.to_real()), x.imag.to(dtype.to_real()))


def _full(shape: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Pair:
    if dtype is None:
        raise Unpaired
    number = complex(value)
    return Pair(torch.full(shape, number.real, dtype=dtype.to_real()), torch.full(shape, number.imag, dtype=dtype.to_real()))


def _like(number: complex | None) -> Callable[..., Pair]:
    def rule(x: Any, value: Any = number, *, dtype: torch.dtype | None = None, **_: Any) -> Pair:
        like = _pair(x).real
        return _full(like.shape, value, dtype=dtype or like.dtype.to_complex())

    return rule


def _new(number: complex | None) -> Callable[..., Pair]:
    def rule(x: Any, shape: Sequence[int], value: Any = number, *, dtype: torch.dtype | None = None, **_: Any) -> Pair:
        return _full(shape, value, dtype=dtype or _pair(x).real.dtype.to_complex())

    return rule


def dft_matrices(n: int, forward: bool, dtype: torch.dtype) -> Pair:
    """exp(-2 pi i j k / n), or its conjugate for the inverse, as two real matrices [n, n]; unscaled and symmetric.

    The angle is reduced modulo n in integers first, so that large j k lose nothing.
    """
    index = torch.arange(n)
    angle = (index[:, None] * index % n).to(dtype) * ((-2 if forward else 2) * math.pi / n)
    return Pair(torch.cos(angle), torch.sin(angle))


def _along(x: Tensor, dim: int, matrix: Tensor) -> Tensor:
    """x with its dim multiplied by a matrix [old size, new size]."""
    return torch.matmul(x.movedim(dim, -1), matrix).movedim(-1, dim)


def _transform(x: Pair, dims: Sequence[int], forward: bool) -> Pair:
    for dim in dims:
        kernel = dft_matrices(x.real.shape[dim], forward, x.real.dtype)
        x = _product(lambda a, m, dim=dim: _along(a, dim, m))(x, kernel)  # type: ignore[misc]
    return x


def _norm(n: int, normalization: int) -> float:
    return {1: 1 / math.sqrt(n), 2: 1 / n}.get(normalization, 1.0)


def _fft_c2c(x: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    factor = _norm(math.prod(x.real.shape[d] for d in dim), normalization)
    return _mul(_transform(x, dim, forward), factor)


def _fft_r2c(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    last, n = dim[-1], x.shape[dim[-1]]
    kernel = dft_matrices(n, True, x.dtype)
    kept = n // 2 + 1 if onesided else n
    made = Pair(_along(x, last, kernel.real[:, :kept]), _along(x, last, kernel.imag[:, :kept]))
    return _mul(_transform(made, dim[:-1], True), _norm(math.prod(x.shape[d] for d in dim), normalization))


def _fft_c2r(x: Pair, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """Every coefficient but the constant and, for an even size, the highest stands for itself and its mirror image."""
    last, n, half = dim[-1], last_dim_size, last_dim_size // 2 + 1
    x = Pair(x.real.narrow(last, 0, half), x.imag.narrow(last, 0, half))
    x = _transform(x, dim[:-1], False)
    kernel = dft_matrices(n, False, x.real.dtype)
    index = torch.arange(half)[:, None]
    weight = torch.where((index == 0) | (2 * index == n), 1.0, 2.0).to(x.real.dtype)
    made = _along(x.real, last, weight * kernel.real[:half]) - _along(x.imag, last, weight * kernel.imag[:half])
    count = n * math.prod(x.real.shape[d] for d in dim[:-1])
    return made * _norm(count, normalization)


RULES: dict[Any, Callable[..., Any]] = {
    aten.view_as_real.default: lambda x: torch.stack([x.real, x.imag], -1),
    aten.view_as_complex.default: lambda x: Pair(x.select(-1, 0), x.select(-1, 1)),
    aten.complex.default: lambda real, imag: Pair(*torch.broadcast_tensors(real, imag)),  # type: ignore[no-untyped-call]
    aten.polar.default: lambda size, angle: Pair(size * torch.cos(angle), size * torch.sin(angle)),
    aten._conj.default: _conj,
    aten._conj_physical.default: _conj,
    aten.abs.default: _abs,
    aten.angle.default: lambda x: torch.atan2(x.imag, x.real),
    aten.sgn.default: _sgn,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.rsub.Scalar: lambda x, y, alpha=1: _sub(y, x, alpha),
    aten.mul.Tensor: _mul,
    aten.mul.Scalar: _mul,
    aten.div.Tensor: _div,
    aten.div.Scalar: _div,
    aten.reciprocal.default: lambda x: _div(Pair(torch.ones_like(x.real), torch.zeros_like(x.real)), x),
    aten.exp.default: _exp,
    aten.log.default: lambda x: Pair(torch.log(_abs(x)), torch.atan2(x.imag, x.real)),
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.mv.default: _mv,
    aten.dot.default: _dot,
    aten.vdot.default: lambda x, y: _dot(_conj(x), y),
    aten.addmm.default: _added_to(_mm),
    aten.baddbmm.default: _added_to(_bmm),
    aten.eq.Tensor: _same,
    aten.eq.Scalar: _same,
    aten.ne.Tensor: lambda x, y: ~_same(x, y),
    aten.ne.Scalar: lambda x, y: ~_same(x, y),
    aten.isnan.default: lambda x: x.real.isnan() | x.imag.isnan(),
    aten.where.self: _where,
    aten.masked_fill.Scalar: _masked_fill,
    aten._to_copy.default: _convert,
    torch.ops.prims.convert_element_type.default: _convert,
    aten.full.default: _full,
    aten.zeros.default: lambda shape, **k: _full(shape, 0, **k),
    aten.ones.default: lambda shape, **k: _full(shape, 1, **k),
    aten.new_full.default: _new(None),
    aten.new_zeros.default: _new(0),
    aten.new_ones.default: _new(1),
    aten.full_like.default: _like(None),
    aten.zeros_like.default: _like(0),
    aten.ones_like.default: _like(1),
    aten.scalar_tensor.default: lambda value, **k: _full((), value, **k),
    aten._fft_c2c.default: _fft_c2c,
    aten._fft_r2c.default: _fft_r2c,
    aten._fft_c2r.default: _fft_c2r,
}

for _op in (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.diagonal.default,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.cat.default,
    aten.stack.default,
    aten.split_with_sizes.default,
    aten.split.Tensor,
    aten.unbind.int,
    aten.flip.default,
    aten.roll.default,
    aten.repeat.default,
    aten.tril.default,
    aten.triu.default,
    aten.slice_backward.default,
    aten.select_backward.default,
    aten.index.Tensor,
    aten.gather.default,
    aten.index_select.default,
    aten.embedding.default,
    aten.neg.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.mean.default,
    aten.mean.dim,
    aten.cumsum.default,
    aten.resolve_conj.default,
):
    RULES[_op] = _both(_op)
for _op in (aten.slice_scatter.default, aten.select_scatter.default, aten.copy.default):
    RULES[_op] = _writing(_op)
