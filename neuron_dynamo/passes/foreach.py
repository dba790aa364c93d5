"""Decompositions of aten._foreach_*: one op a tensor of the lists, which is what an optimizer step with foreach=True becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_PREFIX = "_foreach_"
_SINGLE: dict[str, Callable[..., Any]] = {
    "norm": lambda x, ord=2, dtype=None: aten.linalg_vector_norm(x, ord, dtype=dtype),
    "addcmul": lambda x, left, right, value=1: aten.addcmul(x, left, right, value=value),
    "addcdiv": lambda x, left, right, value=1: aten.addcdiv(x, left, right, value=value),
    "zero": torch.zeros_like,
    "copy": lambda x, source, non_blocking=False: aten.copy(x, source, non_blocking),
    "maximum": lambda x, other: aten.maximum(x, other) if isinstance(other, torch.Tensor) else aten.clamp_min(x, other),
    "minimum": lambda x, other: aten.minimum(x, other) if isinstance(other, torch.Tensor) else aten.clamp_max(x, other),
}
"""Ops whose form for one tensor is not the ATen op of the same name."""


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Functional _foreach_ overload -> decomposition, for each that ATen has and that can be traced."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::" + _PREFIX) or base.endswith("_") or overload.endswith("out"):
            continue
        single = _SINGLE.get(base.removeprefix(_PREFIX), getattr(aten, base.removeprefix(_PREFIX), None))
        # The Tensor overloads of addcmul and addcdiv read their scalars as numbers, which nothing can trace.
        if single is not None and (base, overload) not in ((_PREFIX + "addcmul", "Tensor"), (_PREFIX + "addcdiv", "Tensor")):
            table[getattr(getattr(aten, base), overload or "default")] = _each(single)
    return table


def _each(single: Callable[..., Any]) -> Callable[..., list[Any]]:
    def decomposition(*args: Any, **kwargs: Any) -> list[Any]:
        count = next(len(a) for a in args if isinstance(a, (list, tuple)))
        return [single(*(_nth(a, i) for a in args), **{k: _nth(v, i) for k, v in kwargs.items()}) for i in range(count)]

    return decomposition


def _nth(argument: Any, index: int) -> Any:
    return argument[index] if isinstance(argument, (list, tuple)) else argument
