"""The conjugate of a Python number is one: the backward graph of `x * 1j` asks for it as if the number were a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def numbers(gm: GraphModule) -> None:
    """Write, in place, the conjugates of numbers into the arguments that took them, in `gm` and in its sub-graphs."""
    for node in gm.graph.find_nodes(op="call_function", target=aten._conj.default):
        number = node.args[0]
        if isinstance(number, (int, float, complex)) and all(user.op == "call_function" for user in node.users):
            _put(node, number.conjugate())
            gm.graph.erase_node(node)
    for child in gm.children():
        if isinstance(child, GraphModule):
            numbers(child)


def _put(node: Node, value: Any) -> None:
    """Let the users of `node` take `value`, which is no Node, in its place."""
    for user in list(node.users):
        user.args, user.kwargs = torch.fx.node.map_arg((user.args, user.kwargs), lambda n: value if n is node else n)
