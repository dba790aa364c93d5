"""Whether an FX node can be lowered natively, and if not, why: the guard before Torch-MLIR and before every rule."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.lowering import registry
from neuron_dynamo.lowering.program import DTYPE_NAMES
from neuron_dynamo.lowering.regions import why_not_regions
from neuron_dynamo.lowering.torch_mlir_ops import TORCH_MLIR_OPS
from neuron_dynamo.target import Target


def why_not_native(node: Node, target: Target) -> str | None:
    """Reason that `node` must run on the host, or None. getitem is as native as what it takes from."""
    if node.op == "get_attr":
        return None
    if node.target is operator.getitem:
        return why_not_native(node.args[0], target) if isinstance(node.args[0], Node) else "getitem of no node"
    if isinstance(node.target, torch._ops.HigherOrderOperator) and (reason := why_not_regions(node, target, why_not_native)):
        return reason
    if reason := _unfit_values(node, target):
        return reason
    entry = registry.find(node.target)
    if entry is not None:
        if entry.guard is None:
            return None
        args = torch.fx.node.map_arg(node.args, lambda n: n.meta.get("val"))
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: n.meta.get("val"))
        return entry.why_not(target, args, kwargs)
    if node.target in TORCH_MLIR_OPS:
        if any(
            isinstance(n.meta["val"], torch.Tensor) and (n.meta["val"].ndim == 0 or n.meta["val"].numel() == 0)
            for n in node.all_input_nodes
        ):
            return "Torch-MLIR may abort on 0-d and empty operands of this op"
        return None
    return "no native lowering"


def _unfit_values(node: Node, target: Target) -> str | None:
    for value in [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]:
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if reason := _unfit(tensor, target):
                return reason
    return None


def _unfit(value: Any, target: Target) -> str | None:
    if value is None or isinstance(value, torch.nn.Module):  # the sub-graph of a higher-order op
        return None
    if not isinstance(value, torch.Tensor):
        return f"a value of type {type(value).__name__}"
    if value.dtype not in DTYPE_NAMES:
        return f"StableHLO has no {value.dtype}"
    if value.dtype not in target.dtypes:
        return f"target {target.name} has no {value.dtype}"
    if value.layout != torch.strided:
        return f"layout {value.layout}"
    if not all(isinstance(n, int) for n in value.shape):
        return "a shape that depends on data"
    return None
