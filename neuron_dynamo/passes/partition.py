"""Partition: cut a placed graph into alternating host and native segments, as few as data dependence allows.

Level k runs its host nodes, then its native nodes. A node's level is the least at which its inputs are ready, so islands of the
same kind merge. Host nodes that must keep their order (mutations, random draws) never move to an earlier level than one before them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten


SAME_SIZE_VIEWS = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.expand.default,
        aten.alias.default,
        aten.detach.default,
    }
)
"""Views that need no more memory than their result does."""

NARROWING_VIEWS = frozenset({aten.slice.Tensor, aten.select.int, aten.diagonal.default})
"""Views into part of a base: replayed only where the base exists anyway (an input of the graph)."""

VIEWS = SAME_SIZE_VIEWS | NARROWING_VIEWS


@dataclass
class Segment:
    """Nodes of one kind that run together. A native segment is one Program, a host segment a list of eager calls."""

    native: bool
    nodes: list[Node] = field(default_factory=list)


def partition(graph: Graph, is_native: Callable[[Node], bool]) -> list[Segment]:
    """Segments in the order in which they run. Placeholders and the output node are in none."""
    levels: dict[Node, int] = {}
    segments: dict[tuple[int, bool], Segment] = {}
    ordered = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        native = is_native(node)
        level = 0
        for source in node.all_input_nodes:
            if source.op == "placeholder":
                continue
            level = max(level, levels[source] + (1 if is_native(source) and not native else 0))
        if mutates(node):
            # Everything before it in the graph may read what it overwrites.
            level = max((levels[n] + (1 if is_native(n) else 0) for n in levels), default=0)
        if not native and node.is_impure():
            ordered = level = max(level, ordered)
        levels[node] = level
    _sink(graph, levels, is_native)
    for node in levels:
        key = (levels[node], is_native(node))
        segments.setdefault(key, Segment(key[1])).nodes.append(node)
    return [segments[key] for key in sorted(segments)]


def _sink(graph: Graph, levels: dict[Node, int], is_native: Callable[[Node], bool]) -> None:
    """Move cheap native nodes (views, constants) down to the level of their first reader, so that programs hand over what the
    views are of, and not copies."""
    for node in reversed(graph.nodes):
        if node not in levels or not is_native(node) or not (node.target in VIEWS or not node.all_input_nodes):
            continue
        readers = [levels[user] + (0 if is_native(user) else -1) if user.op != "output" else levels[node] for user in node.users]
        levels[node] = max(levels[node], min(readers, default=levels[node]))


def extract(segment: Segment, owner: GraphModule, results: set[Node]) -> tuple[Graph, list[Node], list[Node]]:
    """The segment as a graph of its own: (graph, nodes that feed its placeholders, nodes of its outputs).

    `results` are nodes that the graph returns or other segments read. Only tensor nodes cross the border.
    """
    inside = set(segment.nodes)
    feeds: dict[Node, None] = {}
    for node in segment.nodes:
        for source in node.all_input_nodes:
            if source not in inside:
                feeds[source] = None
    order = {node: i for i, node in enumerate(owner.graph.nodes)}
    inputs = sorted(feeds, key=order.__getitem__)
    graph = Graph(owning_module=owner)
    copies: dict[Node, Node] = {}
    for number, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"arg{number}")
        copies[node].meta = node.meta
    for node in segment.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = [node for node in segment.nodes if node in results]
    graph.output(tuple(copies[node] for node in outputs))
    return graph, inputs, outputs


def crossing(segments: list[Segment], output: Node) -> set[Node]:
    """Nodes whose value leaves their segment."""
    home = {node: segment for segment in segments for node in segment.nodes}
    leaving = set(output.all_input_nodes)
    for segment in segments:
        for node in segment.nodes:
            leaving.update(source for source in node.all_input_nodes if source in home and home[source] is not segment)
    return leaving


def mutates(node: Node) -> bool:
    """Whether the node writes into one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
