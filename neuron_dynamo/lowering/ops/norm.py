"""Layer, group and batch normalisation with their gradients. Definitions: ATen's native_*_norm ops.

Statistics are computed in float32 for float16 and bfloat16 inputs, by two passes over the input.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.ops.reduction import centred_moments, count
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce, spread

aten = torch.ops.aten
Results = tuple[Value | None, ...]


def _wide(b: Builder, x: Value) -> Value:
    return b.convert(x, compute_dtype(x.dtype))


def _finish(b: Builder, *results: Value | None) -> Results:
    """Each result rounded to its dtype and reshaped to its shape; a result that the node does not have is None."""
    finished: list[Value | None] = []
    for result, spec in zip(results, b.outs, strict=True):
        finished.append(None if spec is None or result is None else b.reshape(b.convert(result, spec.dtype), spec.shape))
    return tuple(finished)


def _affine(b: Builder, x: Value, weight: Value | None, bias: Value | None, dims: Sequence[int]) -> Value:
    """x * weight + bias, either of them absent; dim i of weight and bias is dim `dims[i]` of x."""
    if weight is not None:
        x = b.mul(x, b.broadcast(b.convert(weight, x.dtype), x.shape, dims))
    return x if bias is None else b.add(x, b.broadcast(b.convert(bias, x.dtype), x.shape, dims))


def _inverse_deviation(b: Builder, variance: Value, eps: float) -> Value:
    return b.unary("rsqrt", b.add(variance, b.like(variance, eps)) if eps else variance)


def _normalised(b: Builder, x: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value, Value]:
    """(x with mean 0 and deviation 1 over dims, mean, 1 / deviation)."""
    mean, centred, variance = centred_moments(b, x, dims)
    rstd = _inverse_deviation(b, variance, eps)
    return b.mul(centred, spread(b, rstd, x.shape, dims)), mean, rstd


def _input_gradient(b: Builder, grad: Value, normal: Value, rstd: Value, dims: Sequence[int]) -> Value:
    """Gradient of _normalised: rstd * (grad - mean(grad) - normal * mean(grad * normal)); rstd is without dims."""
    n = count(grad.shape, dims)
    total = reduce(b, grad, dims, "add")
    projection = reduce(b, b.mul(grad, normal), dims, "add")
    size = b.like(total, n)
    total, projection = (spread(b, b.div(v, size), grad.shape, dims) for v in (total, projection))
    inner = b.sub(b.sub(grad, total), b.mul(normal, projection))
    return b.mul(inner, spread(b, rstd, grad.shape, dims))


# Layer normalisation


@lowering(aten.native_layer_norm.default)
def layer_norm(b: Builder, x: Value, normalized_shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float) -> Results:
    dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    normal, mean, rstd = _normalised(b, _wide(b, x), dims, eps)
    return _finish(b, _affine(b, normal, weight, bias, dims), mean, rstd)


@lowering(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    b: Builder,
    grad: Value,
    x: Value,
    normalized_shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> Results:
    first = x.ndim - len(normalized_shape)
    dims, outer = tuple(range(first, x.ndim)), tuple(range(first))
    x, grad = _wide(b, x), _wide(b, grad)
    mean, rstd = (b.reshape(b.convert(v, x.dtype), x.shape[:first]) for v in (mean, rstd))
    normal = b.mul(b.sub(x, spread(b, mean, x.shape, dims)), spread(b, rstd, x.shape, dims))
    dx = _input_gradient(b, _affine(b, grad, weight, None, dims), normal, rstd, dims) if output_mask[0] else None
    dw = reduce(b, b.mul(grad, normal), outer, "add") if output_mask[1] else None
    db = reduce(b, grad, outer, "add") if output_mask[2] else None
    return _finish(b, dx, dw, db)


# Group normalisation


@lowering(aten.native_group_norm.default)
def group_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, area: int, group: int, eps: float
) -> Results:
    grouped = b.reshape(_wide(b, x), (n, group, c // group * area))
    normal, mean, rstd = _normalised(b, grouped, (2,), eps)
    return _finish(b, _affine(b, b.reshape(normal, x.shape), weight, bias, (1,)), mean, rstd)


@lowering(aten.native_group_norm_backward.default)
def group_norm_backward(
    b: Builder,
    grad: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    n: int,
    c: int,
    area: int,
    group: int,
    output_mask: Sequence[bool],
) -> Results:
    grouped, flat = (n, group, c // group * area), (n, c, area)
    x, grad = b.reshape(_wide(b, x), grouped), b.reshape(_wide(b, grad), flat)
    mean, rstd = (b.reshape(b.convert(v, x.dtype), (n, group)) for v in (mean, rstd))
    normal = b.mul(b.sub(x, spread(b, mean, grouped, (2,))), spread(b, rstd, grouped, (2,)))
    weighted = b.reshape(_affine(b, grad, weight, None, (1,)), grouped)
    dx = _input_gradient(b, weighted, normal, rstd, (2,)) if output_mask[0] else None
    dw = reduce(b, b.mul(grad, b.reshape(normal, flat)), (0, 2), "add") if output_mask[1] else None
    db = reduce(b, grad, (0, 2), "add") if output_mask[2] else None
    return _finish(b, dx, dw, db)


# Batch normalisation


def _batch_dims(x: Value) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _by_running_statistics(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, eps: float
) -> Value:
    """x * scale + shift with scale and shift per channel, as ATen's kernel has it."""
    wide = _wide(b, x)
    scale = _inverse_deviation(b, b.convert(variance, wide.dtype), eps)
    if weight is not None:
        scale = b.mul(scale, b.convert(weight, wide.dtype))
    shift = b.neg(b.mul(b.convert(mean, wide.dtype), scale))
    if bias is not None:
        shift = b.add(shift, b.convert(bias, wide.dtype))
    return _affine(b, wide, scale, shift, (1,))


def _updated(b: Builder, running: Value | None, batch: Value, momentum: float, factor: float = 1.0) -> Value | None:
    """momentum * factor * batch + (1 - momentum) * running."""
    if running is None:
        return None
    new = b.mul(batch, b.like(batch, momentum * factor))
    return b.add(new, b.mul(b.convert(running, batch.dtype), b.like(batch, 1 - momentum)))


def _batch_statistics_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> list[Value | None]:
    """[output, mean, 1 / deviation, new running mean, new running variance (unbiased)]."""
    dims = _batch_dims(x)
    wide = _wide(b, x)
    mean, centred, variance = centred_moments(b, wide, dims)
    rstd = _inverse_deviation(b, variance, eps)
    scale = rstd if weight is None else b.mul(rstd, b.convert(weight, wide.dtype))
    n = count(x.shape, dims)
    unbiased = n / (n - 1) if n > 1 else float("nan")
    output = _affine(b, centred, scale, bias, (1,))
    return [output, mean, rstd, _updated(b, running_mean, mean, momentum), _updated(b, running_var, variance, momentum, unbiased)]


def _empty(b: Builder) -> Value:
    return b.full((0,), 0, torch.float32)


@lowering(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> Results:
    if training:
        return _finish(b, *_batch_statistics_norm(b, x, weight, bias, running_mean, running_var, momentum, eps))
    output = _by_running_statistics(b, x, weight, bias, running_mean, running_var, eps)
    return _finish(b, output, _empty(b), _empty(b), running_mean, running_var)


@lowering(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> Results:
    return _finish(b, *_batch_statistics_norm(b, x, weight, bias, None, None, momentum, eps)[:3])


@lowering(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value, momentum: float, eps: float
) -> Results:
    return _finish(b, _by_running_statistics(b, x, weight, bias, running_mean, running_var, eps), _empty(b), _empty(b))


@lowering(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> Results:
    """(output, mean, 1 / deviation, reserve (empty on CPU), running mean, running variance)."""
    output, mean, rstd, new_mean, new_var = _batch_statistics_norm(b, x, weight, bias, running_mean, running_var, momentum, eps)
    return _finish(b, output, mean, rstd, _empty(b), new_mean, new_var)


@lowering(aten._batch_norm_no_update.default)
def batch_norm_no_update(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> Results:
    if running_mean is None or running_var is None:
        return _finish(b, *_batch_statistics_norm(b, x, weight, bias, None, None, momentum, eps)[:3], _empty(b))
    output = _by_running_statistics(b, x, weight, bias, running_mean, running_var, eps)
    return _finish(b, output, _empty(b), _empty(b), _empty(b))


@lowering(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder,
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Results:
    """Through the batch's statistics when `train`, else the running ones, which are constants."""
    dims = _batch_dims(x)
    x, grad = _wide(b, x), _wide(b, grad)
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, rstd = b.convert(save_mean, x.dtype), b.convert(save_invstd, x.dtype)
    else:
        assert running_mean is not None and running_var is not None
        mean, rstd = b.convert(running_mean, x.dtype), _inverse_deviation(b, b.convert(running_var, x.dtype), eps)
    normal = b.mul(b.sub(x, spread(b, mean, x.shape, dims)), spread(b, rstd, x.shape, dims))
    db = reduce(b, grad, dims, "add")
    dw = reduce(b, b.mul(grad, normal), dims, "add")
    scale = rstd if weight is None else b.mul(rstd, b.convert(weight, x.dtype))
    dx = grad
    if train:
        size = b.like(db, count(x.shape, dims))
        shift, slope = (spread(b, b.div(v, size), x.shape, dims) for v in (db, dw))
        dx = b.sub(b.sub(grad, shift), b.mul(normal, slope))
    dx = b.mul(dx, spread(b, scale, x.shape, dims))
    return _finish(b, *(v if wanted else None for v, wanted in zip((dx, dw, db), output_mask, strict=True)))


@lowering(aten.batch_norm_backward.default)
def batch_norm_backward_with_reserve(
    b: Builder,
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_var: Value | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Value,
) -> Results:
    """As native_batch_norm_backward: on CPU `save_var` is 1 / deviation and `reserve` empty."""
    return batch_norm_backward(b, grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask)
