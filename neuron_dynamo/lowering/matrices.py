"""What the linear algebra rules share: matrices in one flat batch, products, adjoints, counted loops.

A matrix Value here is [batch, rows, columns], a vector [batch, n]; positions and counts are int32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value, real_dtype
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.structured import dynamic_slice, dynamic_update_slice, gather, reduce, while_loop
from neuron_dynamo.target import Target

INDEX = torch.int32
MOST_UNROLLED = 16
"""Steps of a counted loop that are written out on targets without `while`."""


def too_many_steps(steps: int, target: Target) -> str | None:
    """Why a counted loop of `steps` cannot be lowered for `target`, or None."""
    if "while" in target.ops or steps <= MOST_UNROLLED:
        return None
    return f"{steps} elimination steps: {target.name} has no loops, and at most {MOST_UNROLLED} steps are written out"


def counted(b: Builder, steps: int, carried: Sequence[Value], body: Callable[[Value, list[Value]], list[Value]]) -> list[Value]:
    """`body(step, carried)` for step 0 .. steps - 1 (0-d int32), as a while loop, or written out where the target has none."""
    if steps <= 1 or "while" not in b.target.ops:
        values = list(carried)
        for step in range(steps):
            values = body(b.scalar(step, INDEX), values)
        return values

    def turn(values: list[Value]) -> list[Value]:
        step, *rest = values
        return [b.add(step, b.scalar(1, INDEX)), *body(step, rest)]

    return while_loop(b, [b.scalar(0, INDEX), *carried], lambda values: b.compare("LT", values[0], b.scalar(steps, INDEX)), turn)[1:]


# Batches


def flat(b: Builder, x: Value, inner: int = 2) -> Value:
    """All dims but the last `inner` as one."""
    lead = x.shape[: x.ndim - inner]
    return b.reshape(x, (math.prod(lead), *x.shape[x.ndim - inner :]))


def flat_to(b: Builder, x: Value, lead: Sequence[int], inner: int = 2) -> Value:
    """x with its batch dims broadcast to `lead`, then made one."""
    return flat(b, b.expand(x, (*lead, *x.shape[x.ndim - inner :])), inner)


# Arithmetic


def conj(b: Builder, x: Value) -> Value:
    """Complex conjugate; real x itself."""
    if not x.dtype.is_complex:
        return x
    kind = real_dtype(x.dtype)
    real, imag = (b.emit(part, [x], x.shape, kind) for part in ("real", "imag"))
    return b.emit("complex", [real, b.neg(imag)], x.shape, x.dtype)


def real_part(b: Builder, x: Value) -> Value:
    """Real part, in the real dtype."""
    return b.emit("real", [x], x.shape, real_dtype(x.dtype)) if x.dtype.is_complex else x


def transposed(b: Builder, x: Value) -> Value:
    """Last two dims swapped."""
    return b.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def adjoint(b: Builder, x: Value) -> Value:
    """Conjugate transpose."""
    return transposed(b, conj(b, x))


def matmul(b: Builder, x: Value, y: Value) -> Value:
    """[batch, m, k] @ [batch, k, n]."""
    return dot_general(b, x, y, ((2,), (1,)), ((0,), (0,)))


def magnitude(b: Builder, x: Value) -> Value:
    """abs, in the real dtype."""
    return b.emit("abs", [x], x.shape, real_dtype(x.dtype))


# Places


def position(b: Builder, shape: Sequence[int], dim: int) -> Value:
    """The index along `dim`, of `shape`."""
    return b.iota(shape, dim, INDEX)


def at(b: Builder, place: Value, index: Value) -> Value:
    """place == index, where index (0-d, or [batch]) is spread over place's later dims."""
    return b.compare("EQ", place, spread(b, index, place.shape))


def after(b: Builder, place: Value, index: Value) -> Value:
    """place > index, likewise."""
    return b.compare("GT", place, spread(b, index, place.shape))


def spread(b: Builder, x: Value, shape: Sequence[int], dims: Sequence[int] | None = None) -> Value:
    """x over `shape`; its dims are the first ones, or `dims`."""
    return b.broadcast(x, shape, range(x.ndim) if dims is None else dims)


def both(b: Builder, x: Value, y: Value) -> Value:
    """Logical and."""
    return b.binary("and", x, y)


def where(b: Builder, condition: Value, x: Value) -> Value:
    """x where condition holds, else zero."""
    return b.select(condition, x, b.like(x, 0))


def one_at(b: Builder, x: Value, dim: int, step: Value) -> Value:
    """The slice of x at `step` (0-d) of `dim`, which is dropped."""
    zero = b.scalar(0, INDEX)
    starts = [step if d == dim else zero for d in range(x.ndim)]
    sizes = [1 if d == dim else n for d, n in enumerate(x.shape)]
    return b.reshape(dynamic_slice(b, x, starts, sizes), (*x.shape[:dim], *x.shape[dim + 1 :]))


def put_at(b: Builder, x: Value, part: Value, dim: int, step: Value) -> Value:
    """x with `part` (without `dim`) written at `step` of `dim`."""
    zero = b.scalar(0, INDEX)
    return dynamic_update_slice(b, x, b.unsqueeze(part, dim), [step if d == dim else zero for d in range(x.ndim)])


def select_row(b: Builder, here: Value, x: Value) -> Value:
    """The one row of each matrix (or element of each vector) at which `here` holds, without that dim: exact, also by inf and NaN."""
    return reduce(b, where(b, here, x), (1,), "add")


def take_rows(b: Builder, x: Value, rows: Value) -> Value:
    """x [batch, m, n] at rows [batch, k]: [batch, k, n]."""
    return gather(
        b,
        x,
        b.unsqueeze(rows, 2),
        offset_dims=[2],
        collapsed=[1],
        index_map=[1],
        slice_sizes=[1, 1, x.shape[2]],
        shape=(*rows.shape, x.shape[2]),
        operand_batching=[0],
        indices_batching=[0],
    )


def eye(b: Builder, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Ones on the main diagonals of [batch, rows, columns]."""
    rows, columns = (position(b, shape[-2:], d) for d in range(2))
    return b.expand(b.convert(b.compare("EQ", rows, columns), dtype), shape)


def triangle(b: Builder, x: Value, lower: bool, diagonal: int = 0) -> Value:
    """Zero above (lower) or below the diagonal number `diagonal`."""
    rows, columns = (position(b, x.shape[-2:], d) for d in range(2))
    edge = b.add(rows, b.like(rows, diagonal)) if diagonal else rows
    return where(b, b.expand(b.compare("GE" if lower else "LE", edge, columns), x.shape), x)
