"""Reductions, windows and running reductions of one or several tensors with any associative, commutative combiner.

They are written out as elementwise ops on slices, for targets whose own forms take no such combiner. A combiner maps two lists of
equally shaped Values to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neuron_dynamo.lowering.builder import Builder, Scalar, Value

Body = Callable[[list[Value], list[Value]], list[Value]]


def fold(b: Builder, operands: Sequence[Value], inits: Sequence[Scalar], dims: Sequence[int], body: Body) -> list[Value]:
    """Reduce over `dims`, which are dropped, by halves: about log2(n) steps a dim. `inits` are the combiner's identities."""
    values = list(operands)
    for dim in dims:
        while (n := values[0].shape[dim]) > 1:
            half = n // 2
            left, right = ([b.slice_dim(v, dim, start, start + half) for v in values] for start in (0, half))
            merged = body(left, right)
            if n % 2:
                merged = [b.concat([m, b.slice_dim(v, dim, n - 1, n)], dim) for m, v in zip(merged, values, strict=True)]
            values = merged
    shape = tuple(n for d, n in enumerate(operands[0].shape) if d not in dims)
    if any(values[0].shape[d] == 0 for d in dims):
        return [b.full(shape, init, v.dtype) for init, v in zip(inits, values, strict=True)]
    return [b.reshape(v, shape) for v in values]


def fold_windows(
    b: Builder,
    operands: Sequence[Value],
    inits: Sequence[Scalar],
    body: Body,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> list[Value]:
    """Reduce over windows, every dim given: one dim after the other, each by its taps."""
    low, high = [lo for lo, _ in padding], [hi for _, hi in padding]
    values = [b.pad(v, init, low, high) for v, init in zip(operands, inits, strict=True)]
    for dim, (taps, stride, step) in enumerate(zip(window, strides, dilation, strict=True)):
        if taps == 1 and stride == 1:
            continue
        n = values[0].shape[dim]
        reach = (taps - 1) * step + 1
        out = max(0, (n - reach) // stride + 1)
        extent = (out - 1) * stride + 1 if out else 0
        views = [[b.slice_dim(v, dim, t * step, t * step + extent, stride) for v in values] for t in range(taps)]
        values = views[0]
        for view in views[1:]:
            values = body(values, view)
    return values


def running(b: Builder, operands: Sequence[Value], inits: Sequence[Scalar], dim: int, body: Body) -> list[Value]:
    """Inclusive running reduction along `dim` (Hillis and Steele): log2(n) steps, each combining with what lies 1, 2, 4 ... before."""
    values, distance, n = list(operands), 1, operands[0].shape[dim]
    while distance < n:
        low, high = [0] * values[0].ndim, [0] * values[0].ndim
        low[dim], high[dim] = distance, -distance
        values = body([b.pad(v, init, low, high) for v, init in zip(values, inits, strict=True)], values)
        distance *= 2
    return values
