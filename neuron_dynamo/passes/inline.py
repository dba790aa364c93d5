"""Nested compile regions put inline in Dynamo's graph, before AOTAutograd traces it, so that one joint graph holds forward and backward."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from neuron_dynamo.passes.expand import replace


def inline_regions(gm: GraphModule) -> None:
    """Replace, in place, each invoke_subgraph call of `gm` and of its sub-graphs by the nodes of what it calls."""
    changed = False
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.higher_order.invoke_subgraph:
            changed = _inline(gm, node) or changed
    for name, child in gm.named_children():
        if isinstance(child, GraphModule) and any(n.op == "get_attr" and n.target == name for n in gm.graph.nodes):
            inline_regions(child)
    if changed:
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
        gm.recompile()


def _inline(gm: GraphModule, node: Node) -> bool:
    called: Any = node.args[0]
    subgraph = gm.get_submodule(str(called.target))
    if not isinstance(subgraph, GraphModule) or any(user.target is not operator.getitem for user in node.users):
        return False
    inline_regions(subgraph)
    copies: dict[Node, Any] = dict(zip((n for n in subgraph.graph.nodes if n.op == "placeholder"), node.args[2:], strict=True))
    results: Any = ()
    with gm.graph.inserting_before(node):
        for inner in subgraph.graph.nodes:
            if inner.op == "output":
                results = torch.fx.node.map_arg(inner.args[0], copies.__getitem__)
            elif inner.op != "placeholder":
                copies[inner] = gm.graph.node_copy(inner, copies.__getitem__)
                if inner.op in ("get_attr", "call_module"):
                    copies[inner].target = f"{called.target}.{inner.target}"
    replace(node, results)
    gm.graph.erase_node(node)
    return True
