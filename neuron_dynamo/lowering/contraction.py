"""StableHLO's dot_general and convolution, as functions over a Builder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.exact_integers import is_integer, products
from neuron_dynamo.lowering.structured import reduce


def _alike(b: Builder, x: Value, y: Value, dtype: torch.dtype | None) -> tuple[Value, Value]:
    return (x, y) if dtype is None else (b.convert(x, dtype), b.convert(y, dtype))


def _fold_transpose(x: Value, batch: Sequence[int], contract: Sequence[int]) -> tuple[Value, list[int], list[int]]:
    """Read through a transpose where dot_general can: free dims must keep their order."""
    if x.transposed is None:
        return x, list(batch), list(contract)
    source, perm = x.transposed
    free = [perm[d] for d in range(x.ndim) if d not in batch and d not in contract]
    if free != sorted(free):
        return x, list(batch), list(contract)
    return source, [perm[d] for d in batch], [perm[d] for d in contract]


def dot_general(
    b: Builder,
    x: Value,
    y: Value,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    out_dtype: torch.dtype | None = None,
) -> Value:
    """Result dims: batch, then free dims of x, then free dims of y. No product of nothing is emitted: compilers may fail on it."""
    if is_integer(x.dtype) and "dot.integers" not in b.target.ops and (found := products(b, *_alike(b, x, y, out_dtype), contract, batch)):
        return reduce(b, *found, "add")
    x, x_batch, x_contract = _fold_transpose(x, batch[0], contract[0])
    y, y_batch, y_contract = _fold_transpose(y, batch[1], contract[1])
    if out_dtype is not None and out_dtype != x.dtype and not b.target.widening_dot:
        x, y = b.convert(x, out_dtype), b.convert(y, out_dtype)
    shape = [x.shape[d] for d in x_batch]
    shape += [n for d, n in enumerate(x.shape) if d not in x_batch and d not in x_contract]
    shape += [n for d, n in enumerate(y.shape) if d not in y_batch and d not in y_contract]
    if not x.numel or not y.numel:
        return b.full(shape, 0, out_dtype or x.dtype)
    numbers = (
        f"#stablehlo.dot<lhs_batching_dimensions = {x_batch}, rhs_batching_dimensions = {y_batch}, "
        f"lhs_contracting_dimensions = {x_contract}, rhs_contracting_dimensions = {y_contract}>"
    )
    return b.emit("dot_general", [x, y], shape, out_dtype or x.dtype, {"dot_dimension_numbers": mlir.parse(numbers)})


def convolution(
    b: Builder,
    x: Value,
    w: Value,
    *,
    layout: tuple[str, str, str],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    shape: Sequence[int],
    groups: int = 1,
    batch_groups: int = 1,
    reverse: bool = False,
) -> Value:
    """stablehlo.convolution. `layout` spells lhs, rhs and result dims, e.g. ("bf01", "oi01", "bf01"); `shape` is the result's."""
    if not x.numel or not w.numel:
        return b.full(shape, 0, x.dtype)
    dilates = any(d > 1 for d in lhs_dilation)
    if dilates and "convolution.dilated" not in b.target.ops and any(n > 1 for n in (*strides, *rhs_dilation)):
        zeros = [0] * x.ndim
        interior = [int(lhs_dilation[int(name)]) - 1 if name.isdigit() else 0 for name in layout[0]]
        x, lhs_dilation = b.pad(x, 0, zeros, zeros, interior), [1] * len(strides)
    attributes = {
        "window_strides": mlir.i64s(strides),
        "padding": mlir.pairs(padding),
        "lhs_dilation": mlir.i64s(lhs_dilation),
        "rhs_dilation": mlir.i64s(rhs_dilation),
        "window_reversal": mlir.bools([reverse] * len(strides)),
        "dimension_numbers": mlir.parse("#stablehlo.conv<[{}]x[{}]->[{}]>".format(*(", ".join(part) for part in layout))),
        "feature_group_count": mlir.i64(groups),
        "batch_group_count": mlir.i64(batch_groups),
    }
    return b.emit("convolution", [x, w], shape, x.dtype, attributes)
