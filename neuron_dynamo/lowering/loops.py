"""Loops for targets with and without `while`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.structured import while_loop
from neuron_dynamo.target import Target


def bounded_loop(
    b: Builder,
    carried: Sequence[Value],
    condition: Callable[[list[Value]], Value],
    body: Callable[[list[Value]], list[Value]],
    most: int,
) -> list[Value]:
    """Repeat `body` while `condition` (0-d bool) holds, which it does at most `most` times.

    `body` must change no result once the condition fails: where the target has no `while`, it is written out `most` times.
    """
    if "while" in b.target.ops:
        return while_loop(b, carried, condition, body)
    values = list(carried)
    for _ in range(most):
        values = body(values)
    return values


def needs_while(*args: Any, target: Target, **kwargs: Any) -> str | None:
    """Guard of rules whose number of steps depends on data."""
    return None if "while" in target.ops else f"target {target.name} takes no loops, and the number of steps depends on data"
