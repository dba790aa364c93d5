"""Jagged and padded rows, as NestedTensor's jagged layout converts between them. Row i of a jagged tensor [total, ...] with offsets
[batch + 1] is its part from offsets[i] up to offsets[i + 1]. Definitions: aten::_jagged_to_padded_dense_forward and its inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value
from neuron_dynamo.lowering.ops.indexing import take_slices
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import reduce

aten = torch.ops.aten


def _guard(x: torch.Tensor, offsets: Sequence[torch.Tensor], *_: Any, **__: Any) -> str | None:
    if len(offsets) != 1:
        return "several jagged dimensions"
    return None if x.numel() else "a tensor without elements"


@lowering(aten._jagged_to_padded_dense_forward.default, guard=_guard)
def jagged_to_padded(b: Builder, values: Value, offsets: Sequence[Value], max_lengths: Sequence[int], padding: Scalar = 0.0) -> Value:
    """[batch, max_length, ...]: each row, cut at max_length or filled up with `padding`."""
    batch, length = b.out.shape[:2]
    bounds = b.convert(offsets[0], torch.int32)
    starts, ends = (b.broadcast(b.slice_dim(bounds, 0, i, i + batch), (batch, length), (0,)) for i in (0, 1))
    where = b.add(starts, b.iota((batch, length), 1, torch.int32))
    rows = take_slices(b, values, 0, where)
    inside = b.broadcast(b.compare("LT", where, ends), rows.shape, (0, 1))
    return b.select(inside, rows, b.like(rows, padding))


@lowering(aten._padded_dense_to_jagged_forward.default, guard=_guard)
def padded_to_jagged(b: Builder, dense: Value, offsets: Sequence[Value], total_l: int | None = None) -> Value:
    """[total, ...]: the rows without their padding. PyTorch raises where a row is longer than the padded one."""
    batch, length = dense.shape[:2]
    total = b.out.shape[0]
    bounds = b.convert(offsets[0], torch.int32)
    ends = b.broadcast(b.slice_dim(bounds, 0, 1, batch + 1), (total, batch), (1,))
    position = b.iota((total,), 0, torch.int32)
    passed = b.compare("GE", b.broadcast(position, ends.shape, (0,)), ends)
    row = reduce(b, b.convert(passed, torch.int32), (1,), "add")
    column = b.sub(position, take_slices(b, b.slice_dim(bounds, 0, 0, batch), 0, row))
    flat = b.reshape(dense, (batch * length, *dense.shape[2:]))
    return take_slices(b, flat, 0, b.add(b.mul(row, b.like(row, length)), column))
