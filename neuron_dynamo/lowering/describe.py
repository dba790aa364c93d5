"""An op in words, for errors and warnings."""

from __future__ import annotations

import torch
from torch.fx import Node


def describe(node: Node, name: str = "") -> str:
    """An op with the dtypes and shapes of its operands, e.g. `aten.add.Tensor(float32[2, 3], float32[3])`."""
    operands = []
    for operand in node.all_input_nodes:
        value = operand.meta.get("val")
        if isinstance(value, torch.Tensor):
            operands.append(f"{str(value.dtype).removeprefix('torch.')}{[n if isinstance(n, int) else str(n) for n in value.shape]}")
        elif value is not None:
            operands.append(type(value).__name__)
    return f"{name or node.target}({', '.join(operands)})"
