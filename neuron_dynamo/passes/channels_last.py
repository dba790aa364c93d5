"""PyTorch's decompositions of ops that keep channels_last, whose results would be contiguous: given the layout that eager gives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten


def channels_last_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition."""
    definitions = get_decompositions([aten.channel_shuffle.default, aten.max_unpool2d.default])
    definitions[aten.native_channel_shuffle.default] = definitions[aten.channel_shuffle.default]
    return {op: _keeping(definition) for op, definition in definitions.items()}


def _keeping(definition: Callable[..., Any]) -> Callable[..., Tensor]:
    @functools.wraps(definition)
    def keeping(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = definition(x, *args, **kwargs)
        return result.contiguous(memory_format=suggest_memory_format(x))

    return keeping
