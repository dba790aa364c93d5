"""Reductions. Definitions: the ATen schemas and PyTorch's documentation of each op.

Sums of float16 and bfloat16 accumulate in float32 and are rounded once, as ATen's kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value, accurate_dtype, compute_dtype, real_dtype
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import normalise_dims, reduce, spread

aten = torch.ops.aten
Dims = Sequence[int] | int | None


def count(shape: Sequence[int], dims: Sequence[int]) -> int:
    """Number of elements that a reduction over `dims` takes together."""
    return math.prod(shape[d] for d in dims)


def mean_of(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Mean over `dims`, which are dropped, in x's dtype; NaN over no elements."""
    total = reduce(b, x, dims, "add")
    n = count(x.shape, dims)
    return total if n == 1 else b.div(total, b.like(total, n))


def centred_moments(b: Builder, x: Value, dims: Sequence[int], correction: float = 0) -> tuple[Value, Value, Value]:
    """(mean, x - mean, variance): the mean and variance without `dims`, in x's dtype. Two passes, so no cancellation."""
    mean = mean_of(b, x, dims)
    centred = b.sub(x, spread(b, mean, x.shape, dims))
    squares = reduce(b, _square_of_absolute(b, centred), dims, "add")
    return mean, centred, b.div(squares, b.like(squares, max(count(x.shape, dims) - correction, 0)))


def _square_of_absolute(b: Builder, x: Value) -> Value:
    if not x.dtype.is_complex:
        return b.mul(x, x)
    real, imag = (b.emit(part, [x], x.shape, real_dtype(x.dtype)) for part in ("real", "imag"))
    return b.add(b.mul(real, real), b.mul(imag, imag))


def _finish(b: Builder, x: Value, index: int = 0) -> Value:
    """Result `index` of the running rule: rounded to its dtype, with the kept dims put back."""
    spec = b.outs[index]
    assert spec is not None
    return b.reshape(b.convert(x, spec.dtype), spec.shape)


@lowering(aten.sum.default, aten.sum.dim_IntList)
def sum_(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    wide = b.convert(x, compute_dtype(b.out.dtype))
    return _finish(b, reduce(b, wide, normalise_dims(dim, x.ndim), "add"))


@lowering(aten.mean.default, aten.mean.dim)
def mean(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    wide = b.convert(x, compute_dtype(b.out.dtype))
    return _finish(b, mean_of(b, wide, normalise_dims(dim, x.ndim)))


@lowering(aten.prod.default, aten.prod.dim_int)
def prod(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    wide = b.convert(x, compute_dtype(b.out.dtype))
    return _finish(b, reduce(b, wide, normalise_dims(dim, x.ndim), "mul"))


def _extreme(b: Builder, x: Value, dims: Sequence[int], kind: str) -> Value:
    if x.dtype == torch.bool:
        kind = {"max": "or", "min": "and"}[kind]
    return reduce(b, x, dims, kind)


def _extremes(kind: str) -> Callable[..., Value]:
    def rule(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        return _finish(b, _extreme(b, x, normalise_dims(dim, x.ndim), kind))

    return rule


def _of_something(x: torch.Tensor) -> str | None:
    return "eager PyTorch raises an error for the extreme of no elements" if 0 in x.shape else None


lowering(aten.amax.default)(_extremes("max"))
lowering(aten.amin.default)(_extremes("min"))
lowering(aten.max.default, guard=_of_something)(_extremes("max"))
lowering(aten.min.default, guard=_of_something)(_extremes("min"))


def extreme_with_index(b: Builder, x: Value, dim: int, kind: str) -> tuple[Value, Value]:
    """(extreme, int64 index of the first element equal to it) along `dim`, which is dropped. NaN wins, the first one."""
    extreme = _extreme(b, x, (dim,), kind)
    hit = b.compare("EQ", x, spread(b, extreme, x.shape, (dim,)))
    if x.dtype.is_floating_point:
        hit = b.binary("or", hit, b.is_nan(x))  # where there is a NaN, the extreme is NaN and equals nothing
    position = b.iota(x.shape, dim, torch.int32)
    index = reduce(b, b.select(hit, position, b.like(position, torch.iinfo(torch.int32).max)), (dim,), "min")
    return extreme, b.convert(index, torch.int64)


def _with_index(kind: str) -> Callable[..., tuple[Value, Value]]:
    def rule(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if x.ndim == 0:
            return x, b.full((), 0, torch.int64)
        extreme, index = extreme_with_index(b, x, dim % x.ndim, kind)
        return _finish(b, extreme, 0), _finish(b, index, 1)

    return rule


lowering(aten.max.dim)(_with_index("max"))
lowering(aten.min.dim)(_with_index("min"))


def _index_only(kind: str) -> Callable[..., Value]:
    def rule(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is None or x.ndim == 0:
            x, dim = b.reshape(x, (x.numel,)), 0
        return _finish(b, extreme_with_index(b, x, dim % x.ndim, kind)[1])

    return rule


lowering(aten.argmax.default)(_index_only("max"))
lowering(aten.argmin.default)(_index_only("min"))


def _truth(kind: str) -> Callable[..., Value]:
    def rule(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        return _finish(b, reduce(b, b.convert(x, torch.bool), normalise_dims(dim, x.ndim), kind))

    return rule


lowering(aten.any.default, aten.any.dim, aten.any.dims)(_truth("or"))
lowering(aten.all.default, aten.all.dim, aten.all.dims)(_truth("and"))


def _variance(b: Builder, x: Value, dim: Dims, correction: float | None) -> tuple[Value, Value]:
    """(variance, mean) over dim, accumulated wide."""
    wide = b.convert(x, compute_dtype(x.dtype))
    mean_, _, variance = centred_moments(b, wide, normalise_dims(dim, x.ndim), 1 if correction is None else correction)
    return variance, mean_


def _deviation(b: Builder, x: Value, dim: Dims, correction: float | None) -> tuple[Value, Value]:
    """(standard deviation, mean) over dim: in double where there is one, as ATen's, so that no square overflows or vanishes."""
    variance, mean_ = _variance(b, b.convert(x, accurate_dtype(x.dtype, b.target)), dim, correction)
    return b.unary("sqrt", variance), mean_


@lowering(aten.var.correction)
def var(b: Builder, x: Value, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Value:
    return _finish(b, _variance(b, x, dim, correction)[0])


@lowering(aten.std.correction)
def std(b: Builder, x: Value, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Value:
    return _finish(b, _deviation(b, x, dim, correction)[0])


@lowering(aten.var_mean.correction)
def var_mean(b: Builder, x: Value, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    variance, mean_ = _variance(b, x, dim, correction)
    return _finish(b, variance, 0), _finish(b, mean_, 1)


@lowering(aten.std_mean.correction)
def std_mean(b: Builder, x: Value, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    deviation, mean_ = _deviation(b, x, dim, correction)
    return _finish(b, deviation, 0), _finish(b, mean_, 1)


@lowering(aten.linalg_vector_norm.default)
def vector_norm(b: Builder, x: Value, ord: Scalar = 2, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    """(sum |x|^p)^(1/p); the largest |x| for p = inf, the least for p = -inf, the count of nonzeros for p = 0."""
    dims = normalise_dims(dim, x.ndim)
    p = float(ord.real)
    if x.dtype.is_complex:
        x = b.emit("abs", [x], x.shape, real_dtype(x.dtype))
    x = b.convert(x, compute_dtype(b.out.dtype))
    if p == 2:
        return _finish(b, b.unary("sqrt", reduce(b, b.mul(x, x), dims, "add")))
    if p == 0:
        return _finish(b, reduce(b, b.convert(b.compare("NE", x, b.like(x, 0)), x.dtype), dims, "add"))
    size = b.unary("abs", x)
    if math.isinf(p):
        return _finish(b, reduce(b, size, dims, "max", init=0) if p > 0 else reduce(b, size, dims, "min"))
    if p == 1:
        return _finish(b, reduce(b, size, dims, "add"))
    total = reduce(b, b.binary("power", size, b.like(size, p)), dims, "add")
    return _finish(b, b.binary("power", total, b.like(total, 1 / p)))


@lowering(aten.logsumexp.default)
def logsumexp(b: Builder, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log(sum(exp(x - m))) + m with m the largest x, or 0 where that is infinite."""
    dims = normalise_dims(dim, x.ndim)
    x = b.convert(x, compute_dtype(b.out.dtype))
    largest = reduce(b, x, dims, "max")
    infinite = b.compare("EQ", b.unary("abs", largest), b.like(largest, math.inf))
    shift = b.select(infinite, b.like(largest, 0), largest)
    total = reduce(b, b.unary("exponential", b.sub(x, spread(b, shift, x.shape, dims))), dims, "add")
    return _finish(b, b.add(b.unary("log", total), shift))
