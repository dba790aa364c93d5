"""Polynomials and Chebyshev series over tensors, for the approximations of special functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value


def polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule, the highest power's coefficient first."""
    result = b.like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = b.mul(result, x)
        if coefficient:
            result = b.add(result, b.like(x, coefficient))
    return result


def ratio(b: Builder, x: Value, numerator: Sequence[float], denominator: Sequence[float]) -> Value:
    """A rational function, each polynomial the highest power first."""
    return b.div(polynomial(b, x, numerator), polynomial(b, x, denominator))


def chebyshev(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Sum of coefficients[n - i] T_i(x / 2), the last one halved, by Clenshaw's recurrence: the convention of Cephes's chbevl.

    Leading terms that x's dtype cannot tell from nothing are left out.
    """
    negligible = 0.01 * torch.finfo(x.dtype).eps * abs(coefficients[-1])
    first = next(i for i, c in enumerate(coefficients) if abs(c) > negligible)
    before, current, after = b.like(x, 0), b.like(x, 0), b.like(x, coefficients[first])
    for coefficient in coefficients[first + 1 :]:
        before, current = current, after
        after = b.add(b.sub(b.mul(x, current), before), b.like(x, coefficient))
    return b.mul(b.sub(after, before), b.like(x, 0.5))
