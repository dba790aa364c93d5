"""Higher-order ops as lowering sees them: what passes/higher_order.py found out about their sub-graphs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from neuron_dynamo.target import Target

REGIONS = "neuron_dynamo_regions"
"""Key in node.meta of a control-flow node: attribute name of each sub-graph -> the GraphModule to lower. It takes those of the
sub-graph's operands that are tensors, and has static shapes."""

WHY_WHOLE = "neuron_dynamo_why_whole"
"""Key in node.meta of a higher-order op that could not be made fit for lowering, with the reason."""


def why_not_regions(node: Node, target: Target, why_not_native: Callable[[Node, Target], str | None]) -> str | None:
    """Why a higher-order op must run on the host because of what its sub-graphs hold, or None."""
    if WHY_WHOLE in node.meta:
        return str(node.meta[WHY_WHOLE])
    if REGIONS not in node.meta and any(map(_is_subgraph, node.all_input_nodes)):
        return "its sub-graphs were not traced for lowering"
    for region in node.meta.get(REGIONS, {}).values():
        for inner in region.graph.nodes:
            if inner.op != "call_function":
                continue
            reason = why_not_native(inner, target) or _lacking(inner, target)
            if reason is not None:
                return f"its sub-graph holds {inner.target}: {reason}"
    return None


def _is_subgraph(node: Node) -> bool:
    return node.op == "get_attr" and isinstance(operator.attrgetter(str(node.target))(node.graph.owning_module), torch.nn.Module)


def _lacking(node: Node, target: Target) -> str | None:
    for value in pytree.tree_leaves(node.meta.get("val")):
        dtype = getattr(value, "dtype", None)
        if dtype is not None and dtype not in target.dtypes:
            return f"target {target.name} has no {dtype}"
    return None


COMPOSITE = "neuron_dynamo_composite"
"""Key in node.meta of a call of `composite`: the Composite that it is."""


@dataclass(frozen=True)
class Composite:
    """A named computation. `graph` is its decomposition: placeholders in the order of the node's arguments, and a tuple of results."""

    name: str
    attributes: dict[str, bool | int | float | str]
    graph: Graph


def composite(*operands: Any) -> Any:
    """FX call target of a node that stands for a Composite; the node's value is a tuple."""
    raise AssertionError("a composite is lowered, never called")
