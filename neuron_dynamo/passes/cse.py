"""Common subexpressions of the joint graph, merged before it is partitioned: each would be saved or recomputed twice.

PyTorch's own pass for this imports all of Inductor's pattern matcher, which costs a cold start more than a second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from neuron_dynamo.passes.partition import VIEWS, mutates

aten = torch.ops.aten
_UNDEFINED = frozenset({aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default})


def cse(gm: GraphModule) -> None:
    """Rewrite `gm` in place. Kept apart: random and mutating ops, and values that the graph returns (or views of them), which
    are separate tensors in eager PyTorch."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    returned = _with_bases(output.all_input_nodes)
    first: dict[Any, Node] = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node in returned or not _pure(node):
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        try:
            earlier = first.setdefault(key, node)
        except TypeError:  # an argument without a hash
            continue
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            gm.graph.erase_node(node)


def _with_bases(nodes: list[Node]) -> set[Node]:
    found: set[Node] = set()
    for node in nodes:
        while isinstance(node, Node) and node not in found:
            found.add(node)
            if node.target not in VIEWS or not isinstance(node.args[0], Node):
                break
            node = node.args[0]
    return found


def _pure(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return getattr(node.target, "__name__", "") == "getitem"
    return not mutates(node) and torch.Tag.nondeterministic_seeded not in node.target.tags and node.target not in _UNDEFINED


def _frozen(value: Any) -> Any:
    """Nested arguments in hashable form; True and 1, or 0.0 and -0.0, stay different."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(map(_frozen, value)))
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    if isinstance(value, (bool, int, float, complex)):
        return (type(value).__name__, repr(value))
    if isinstance(value, slice):
        return ("slice", *map(_frozen, (value.start, value.stop, value.step)))
    return value
