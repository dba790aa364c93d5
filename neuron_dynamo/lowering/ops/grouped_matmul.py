"""Products of groups of rows with one matrix each, as mixture-of-experts layers use them. Definitions: aten::_grouped_mm, and the
custom ops transformers::grouped_mm_fallback and its gradient, which Hugging Face takes for dtypes other than bfloat16.

Groups are ranges of rows: group g ends before row offsets[g]. Where the target runs loops well, a loop goes over blocks of
rows within the groups, so that work is in proportion to the rows; elsewhere every group multiplies all rows, under a mask.
Rows behind the last group give zeros. Sums are made in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import dynamic_slice, dynamic_update_slice, while_loop

aten = torch.ops.aten

_BLOCK = 128
"""Rows that one turn of the loop multiplies: enough to hide the copy of a group's matrix."""


def _mask_of_groups(b: Builder, offsets: Value, rows: int) -> Value:
    """bool [groups, rows]: whether the row lies in the group."""
    (groups,) = offsets.shape
    ends = b.convert(offsets, torch.int32)
    starts = b.pad(ends, 0, [1], [-1])
    row = b.iota((groups, rows), 1, torch.int32)
    return b.binary(
        "and", b.compare("GE", row, b.broadcast(starts, row.shape, (0,))), b.compare("LT", row, b.broadcast(ends, row.shape, (0,)))
    )


def _where_rows(b: Builder, mask: Value, x: Value) -> Value:
    """x [rows, n] with zeros in the rows where mask [rows] does not hold."""
    return b.select(b.broadcast(mask, x.shape, (0,)), x, b.like(x, 0))


def _over_blocks(b: Builder, offsets: Value, block: int, start: Value, turn: Callable[[Value, Value, Value, Value], Value]) -> Value:
    """Loop over all blocks of all groups: result = turn(result, group, first row, row behind the group's last)."""
    (groups,) = offsets.shape
    ends = b.convert(offsets, torch.int32)
    zero = b.scalar(0, torch.int32)

    def more(state: list[Value]) -> Value:
        return b.compare("LT", state[0], b.scalar(groups, torch.int32))

    def body(state: list[Value]) -> list[Value]:
        group, row, result = state
        end = b.reshape(dynamic_slice(b, ends, [group], [1]), ())
        result = turn(result, group, row, end)
        following = b.add(row, b.scalar(block, torch.int32))
        done = b.compare("GE", following, end)
        next_group = b.add(group, b.scalar(1, torch.int32))
        return [b.select(done, next_group, group), b.select(done, end, following), result]

    return while_loop(b, [zero, zero, start], more, body)[2]


def rows_times_groups(b: Builder, x: Value, w: Value, offsets: Value) -> Value:
    """x [rows, k] with w [groups, k, n]: each row times its group's matrix, [rows, n] in the compute dtype."""
    dtype = compute_dtype(x.dtype)
    (rows, inner), (groups, _, width) = x.shape, w.shape
    if not rows or not groups or not inner or not width:
        return b.full((rows, width), 0, dtype)
    if not b.target.is_host:
        mask = _mask_of_groups(b, offsets, rows)
        every = b.broadcast(b.convert(x, dtype), (groups, rows, inner), (1, 2))
        every = b.select(b.broadcast(mask, every.shape, (0, 1)), every, b.like(every, 0))
        return dot_general(b, every, b.convert(w, dtype), ((0, 2), (0, 1)))
    block = min(_BLOCK, rows)
    source = b.pad(x, 0, [0, 0], [block, 0])

    def turn(result: Value, group: Value, row: Value, end: Value) -> Value:
        zero = b.scalar(0, torch.int32)
        part = b.convert(dynamic_slice(b, source, [row, zero], [block, inner]), dtype)
        matrix = b.convert(b.reshape(dynamic_slice(b, w, [group, zero, zero], [1, inner, width]), (inner, width)), dtype)
        # Rows behind the group's end are overwritten by later turns: groups come in order.
        return dynamic_update_slice(b, result, dot_general(b, part, matrix, ((1,), (0,))), [row, zero])

    result = _over_blocks(b, offsets, block, b.full((rows + block, width), 0, dtype), turn)
    result = b.slice_dim(result, 0, 0, rows)
    last = b.convert(b.slice_dim(offsets, 0, groups - 1, groups), torch.int32)
    row = b.iota((rows,), 0, torch.int32)
    return _where_rows(b, b.compare("LT", row, b.broadcast(b.reshape(last, ()), (rows,), ())), result)


def groups_of_products(b: Builder, x: Value, y: Value, offsets: Value) -> Value:
    """x [rows, k] and y [rows, n]: for each group, x's rows transposed times y's, [groups, k, n] in the compute dtype."""
    dtype = compute_dtype(x.dtype)
    (rows, inner), width = x.shape, y.shape[1]
    (groups,) = offsets.shape
    shape = (groups, inner, width)
    if not rows or not groups or not inner or not width:
        return b.full(shape, 0, dtype)
    if not b.target.is_host:
        mask = _mask_of_groups(b, offsets, rows)
        every = b.broadcast(b.convert(x, dtype), (groups, rows, inner), (1, 2))
        every = b.select(b.broadcast(mask, every.shape, (0, 1)), every, b.like(every, 0))
        return dot_general(b, every, b.convert(y, dtype), ((1,), (0,)))
    block = min(_BLOCK, rows)
    left, right = (b.pad(v, 0, [0, 0], [block, 0]) for v in (x, y))

    def turn(result: Value, group: Value, row: Value, end: Value) -> Value:
        zero = b.scalar(0, torch.int32)
        number = b.add(b.iota((block,), 0, torch.int32), b.broadcast(row, (block,), ()))
        mine = b.compare("LT", number, b.broadcast(end, (block,), ()))
        parts = [_where_rows(b, mine, b.convert(dynamic_slice(b, v, [row, zero], [block, v.shape[1]]), dtype)) for v in (left, right)]
        product = b.unsqueeze(dot_general(b, parts[0], parts[1], ((0,), (0,))), 0)
        place = [group, zero, zero]
        return dynamic_update_slice(b, result, b.add(dynamic_slice(b, result, place, [1, inner, width]), product), place)

    return _over_blocks(b, offsets, block, b.full(shape, 0, dtype), turn)


@lowering(aten._grouped_mm.default)
def grouped_mm(
    b: Builder, x: Value, y: Value, offsets: Value | None = None, bias: Value | None = None, out_dtype: torch.dtype | None = None
) -> Value:
    """x and y of rank 2 or 3. The dim in which groups lie is that of the operands of rank 2: rows of x, columns of y, or the inner dim."""
    dtype = compute_dtype(x.dtype)
    if x.ndim == 3 and y.ndim == 3:
        result = dot_general(b, b.convert(x, dtype), b.convert(y, dtype), ((2,), (1,)), ((0,), (0,)))
    else:
        assert offsets is not None
        if x.ndim == 2 and y.ndim == 3:
            result = rows_times_groups(b, x, y, offsets)
        elif x.ndim == 3:
            columns = rows_times_groups(b, b.transpose(y, (1, 0)), b.transpose(x, (0, 2, 1)), offsets)
            result = b.transpose(columns, (1, 0))
        else:
            result = groups_of_products(b, b.transpose(x, (1, 0)), y, offsets)
    if bias is not None:
        result = b.add(result, b.expand(b.convert(bias, dtype), result.shape))
    return b.convert(result, b.out.dtype)


@lowering("transformers.grouped_mm_fallback.default")
def grouped_mm_fallback(b: Builder, x: Value, w: Value, offsets: Value) -> Value:
    """x [rows, k] with w [groups, k, n]."""
    return b.convert(rows_times_groups(b, x, w, offsets), b.out.dtype)


@lowering("transformers.grouped_mm_fallback_backward.default")
def grouped_mm_fallback_backward(b: Builder, x: Value, w: Value, offsets: Value, grad: Value) -> tuple[Value, Value]:
    """Gradients of `grouped_mm_fallback` in x and w."""
    grad_x = rows_times_groups(b, grad, b.transpose(w, (0, 2, 1)), offsets)
    return b.convert(grad_x, x.dtype), b.convert(groups_of_products(b, x, grad, offsets), w.dtype)
