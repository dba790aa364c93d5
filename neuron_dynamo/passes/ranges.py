"""Decompositions of evenly spaced numbers, after aten/src/ATen/native/cpu/RangeFactoriesKernel.cpp.

PyTorch's own decomposition of linspace computes integers from bounds that ATen truncates first, and in float32, where ATen has double.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def range_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    overloads = (aten.linspace.default, aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
    return dict.fromkeys(overloads, linspace)


def linspace(start: Tensor | float, end: Tensor | float, steps: int, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """`steps` numbers from `start` to `end`, both included; the second half is counted from the end."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex or steps < 2:
        return torch._refs.linspace(start, end, steps, dtype=dtype, **kwargs)
    number = torch.arange(steps, dtype=torch.float64)
    first, last = _truncated(start), _truncated(end)
    step = (last - first) / (steps - 1)
    return torch.where(number < steps // 2, first + step * number, last - step * (steps - 1 - number)).to(dtype)


def _truncated(bound: Tensor | float) -> Any:
    """The bound as an integer, in double."""
    return bound.to(torch.int64).to(torch.float64) if isinstance(bound, Tensor) else float(int(bound))
