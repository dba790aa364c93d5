"""Control flow: torch.cond as stablehlo.if, while_loop, scan and map as stablehlo.while.

A sub-graph comes as a function over the op's operands (Values, numbers), which emits it where it is called. For a target that takes no
`while`, loops of a known number of steps are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.program import TensorSpec
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import dynamic_slice, dynamic_update_slice, while_loop
from neuron_dynamo.target import Target

higher_order = torch.ops.higher_order

Subgraph = Callable[..., list[Any]]
Operands = Sequence[Any]

MAX_UNROLLED = 512
"""Steps that are written out for a target without `while`."""


def _fitting(values: Sequence[Any], specs: Sequence[TensorSpec | None]) -> list[Value]:
    """`values` for the specs that are not None, of just those shapes and dtypes."""
    wanted = [(value, spec) for value, spec in zip(values, specs, strict=True) if spec is not None]
    for value, spec in wanted:
        if not isinstance(value, Value) or (value.shape, value.dtype) != (spec.shape, spec.dtype):
            got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Value) else repr(value)
            raise ValueError(f"a sub-graph returns {got} where {spec} is wanted")
    return [value for value, _ in wanted]


def _spread(results: Sequence[Value], specs: Sequence[TensorSpec | None]) -> tuple[Value | None, ...]:
    """One result for each spec, None where the spec is None."""
    rest = iter(results)
    return tuple(None if spec is None else next(rest) for spec in specs)


# Branches


@lowering(higher_order.cond)
def cond(b: Builder, predicate: Value, on_true: Subgraph, on_false: Subgraph, operands: Operands) -> tuple[Value | None, ...]:
    """The results of one of two sub-graphs, of which only that one runs; for a target that is no host both run, and are selected from."""
    specs = b.outs
    condition = b.reshape(b.convert(predicate, torch.bool), ())
    if not b.target.is_host:
        # No document says that the Neuron compiler takes conditionals.
        branches = [_fitting(branch(*operands), specs) for branch in (on_true, on_false)]
        return _spread([b.select(condition, x, y) for x, y in zip(*branches, strict=True)], specs)
    kinds = [(spec.shape, spec.dtype) for spec in specs if spec is not None]
    op = b.op("if", [condition], kinds, regions=2)
    for index, branch in enumerate((on_true, on_false)):
        with b.region(op, index, []):
            b.ret(*_fitting(branch(*operands), specs))
    return _spread([Value(r, tuple(s), d) for r, (s, d) in zip(op.results, kinds, strict=True)], specs)


# Loops


def _needs_while(*args: Any, target: Target) -> str | None:
    return None if "while" in target.ops else f"target {target.name} takes no `while`, and the number of steps depends on data"


@lowering(higher_order.while_loop, guard=_needs_while)
def while_loop_op(
    b: Builder, condition: Subgraph, body: Subgraph, carried: Operands, additional: Operands, *_: Any
) -> tuple[Value | None, ...]:
    """`carried` after as many runs of body(*carried, *additional) as condition(*carried, *additional) allows."""
    specs = b.outs

    def more(values: list[Value]) -> Value:
        (result,) = condition(*values, *additional)
        return b.reshape(result, ())

    return tuple(while_loop(b, _fitting(carried, specs), more, lambda values: _fitting(body(*values, *additional), specs)))


def _steps(xs: Sequence[Any], target: Target) -> str | None:
    steps = xs[0].shape[0] if xs else 0
    if steps == 0:
        return "a loop over nothing"
    if "while" not in target.ops and steps > MAX_UNROLLED:
        return f"target {target.name} takes no `while`, and {steps} steps are too many to write out"
    return None


def _guard_scan(combine: Any, init: Operands, xs: Operands, additional: Operands, *, target: Target) -> str | None:
    return _steps(xs, target)


def _guard_map(body: Any, xs: Operands, additional: Operands, *, target: Target) -> str | None:
    return _steps(xs, target)


@lowering(higher_order.scan, guard=_guard_scan)
def scan(b: Builder, combine: Subgraph, init: Operands, xs: Operands, additional: Operands) -> tuple[Value | None, ...]:
    """(*carry at the end, *rows of all steps) of carry, row = combine(*carry, *row of xs, *additional)."""
    return _over_rows(b, list(init), xs, lambda carry, rows: combine(*carry, *rows, *additional))


@lowering(higher_order.map_impl, guard=_guard_map)
def map_rows(b: Builder, body: Subgraph, xs: Operands, additional: Operands) -> tuple[Value | None, ...]:
    """The stacked results of body(*row of xs, *additional)."""
    return _over_rows(b, [], xs, lambda _, rows: body(*rows, *additional))


def _over_rows(
    b: Builder, init: list[Value], xs: Operands, body: Callable[[list[Value], list[Value]], list[Any]]
) -> tuple[Value | None, ...]:
    specs = b.outs
    steps, count = xs[0].shape[0], len(init)
    stacked = [None if spec is None else TensorSpec(spec.shape[1:], spec.dtype) for spec in specs[count:]]
    step_specs = [*specs[:count], *stacked]
    if steps == 1 or "while" not in b.target.ops:
        carry, rows = init, []
        for number in range(steps):
            row = [b.reshape(b.slice_dim(x, 0, number, number + 1), x.shape[1:]) for x in xs]
            values = _fitting(body(carry, row), step_specs)
            carry = values[:count]
            rows.append([b.unsqueeze(v, 0) for v in values[count:]])
        return _spread([*carry, *(b.concat(parts, 0) for parts in zip(*rows, strict=True))], specs)

    def step(values: list[Value]) -> list[Value]:
        t, *rest = values
        made = _fitting(body(rest[:count], [_read(b, x, t) for x in xs]), step_specs)
        written = [_write(b, all_rows, t, row) for all_rows, row in zip(rest[count:], made[count:], strict=True)]
        return [b.add(t, b.scalar(1, torch.int32)), *made[:count], *written]

    empty = [b.full(spec.shape, 0, spec.dtype) for spec in specs[count:] if spec is not None]
    start = [b.scalar(0, torch.int32), *_fitting(init, specs[:count]), *empty]
    ends = while_loop(b, start, lambda values: b.compare("LT", values[0], b.scalar(steps, torch.int32)), step)
    return _spread(ends[1:], specs)


def _read(b: Builder, x: Value, t: Value) -> Value:
    row = dynamic_slice(b, x, [t, *[b.scalar(0, torch.int32)] * (x.ndim - 1)], (1, *x.shape[1:]))
    return b.reshape(row, x.shape[1:])


def _write(b: Builder, x: Value, t: Value, row: Value) -> Value:
    return dynamic_update_slice(b, x, b.unsqueeze(row, 0), [t, *[b.scalar(0, torch.int32)] * row.ndim])
