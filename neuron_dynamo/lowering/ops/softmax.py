"""Softmax, log-softmax and their gradients. Definitions: ATen's _softmax, _log_softmax and *_backward_data.

Float16 and bfloat16 are computed in float32 and rounded once. A row of -inf alone gives NaN, as in eager.
"""

from __future__ import annotations

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce, spread

aten = torch.ops.aten


def _wide(b: Builder, x: Value) -> Value:
    """x in its compute dtype, with at least one dim."""
    return b.reshape(b.convert(x, compute_dtype(x.dtype)), x.shape or (1,))


def _finish(b: Builder, x: Value) -> Value:
    return b.convert(b.reshape(x, b.out.shape), b.out.dtype)


def _shifted(b: Builder, x: Value, dim: int) -> Value:
    """x less its largest element along dim, so that exp cannot overflow."""
    return b.sub(x, spread(b, reduce(b, x, (dim,), "max"), x.shape, (dim,)))


def softmax_of(b: Builder, x: Value, dim: int) -> Value:
    """Softmax along a non-negative dim, in x's dtype."""
    weights = b.unary("exponential", _shifted(b, x, dim))
    return b.div(weights, spread(b, reduce(b, weights, (dim,), "add"), x.shape, (dim,)))


@lowering(aten._softmax.default)
def softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    x = _wide(b, x)
    return _finish(b, softmax_of(b, x, dim % x.ndim))


@lowering(aten._log_softmax.default)
def log_softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    x = _wide(b, x)
    dim %= x.ndim
    shifted = _shifted(b, x, dim)
    total = reduce(b, b.unary("exponential", shifted), (dim,), "add")
    return _finish(b, b.sub(shifted, spread(b, b.unary("log", total), x.shape, (dim,))))


@lowering(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, grad: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """(grad - sum(grad * output)) * output."""
    grad, output = _wide(b, grad), _wide(b, output)
    dim %= grad.ndim
    total = reduce(b, b.mul(grad, output), (dim,), "add")
    return _finish(b, b.mul(b.sub(grad, spread(b, total, grad.shape, (dim,))), output))


@lowering(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, grad: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """grad - exp(output) * sum(grad)."""
    grad, output = _wide(b, grad), _wide(b, output)
    dim %= grad.ndim
    total = spread(b, reduce(b, grad, (dim,), "add"), grad.shape, (dim,))
    return _finish(b, b.sub(grad, b.mul(b.unary("exponential", output), total)))
