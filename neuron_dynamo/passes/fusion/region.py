"""A fusion's region: nodes that together are one named computation, and how they become one node of the graph.

The region is cut out as it stands and becomes the composite's decomposition, so a composite computes what its nodes would have.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from neuron_dynamo.lowering.regions import COMPOSITE, Composite, composite


@dataclass(frozen=True)
class Match:
    """What a pattern found: the composite's name and attributes (plain scalars and strings), the nodes of the region, in any order, and
    the node whose source line stands for it. `operands` come first among the composite's operands, where they are its at all."""

    name: str
    nodes: tuple[Node, ...]
    anchor: Node
    attributes: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    operands: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Miss:
    """A pattern began to match and did not end: its name, the node, and why."""

    name: str
    anchor: Node
    reason: str


def with_what_is_between(nodes: Iterable[Node], limit: int) -> tuple[Node, ...]:
    """`nodes` and those that stand between two of them, if these are at most `limit`; else `nodes` alone."""
    inside = dict.fromkeys(nodes)
    reached: set[Node] = set()
    after = [user for node in inside for user in node.users if user not in inside]
    while after:
        node = after.pop()
        if node not in reached:
            reached.add(node)
            after += [user for user in node.users if user not in inside]
    between: dict[Node, None] = {}
    before = [source for node in inside for source in node.all_input_nodes if source in reached]
    while before:
        node = before.pop()
        if node not in between:
            between[node] = None
            before += [source for source in node.all_input_nodes if source in reached]
    return (*inside, *between) if len(between) <= limit else tuple(inside)


def why_not_one(match: Match) -> str:
    """Why the region cannot be one node; '' if it can: nothing outside may stand between two of its nodes, nor read what is no tensor."""
    inside = set(match.nodes)
    for node in match.nodes:
        if not isinstance(node.meta.get("val"), torch.Tensor) and any(user not in inside for user in node.users):
            return f"{node.name} has results that others read"
    border = [source for node in match.nodes for source in node.all_input_nodes if source not in inside]
    seen: set[Node] = set()
    while border:
        node = border.pop()
        if node in seen:
            continue
        seen.add(node)
        if inside.intersection(node.all_input_nodes):
            return f"{node.name} stands between its nodes"
        border += node.all_input_nodes
    return ""


def outline(graph: Graph, match: Match, order: Mapping[Node, int]) -> None:
    """Replace the region by one node; its results by what the node returns. `order` is the place of every node before any rewriting."""
    nodes = sorted(match.nodes, key=order.__getitem__)
    inside = set(nodes)
    feeds = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)
    operands = list(dict.fromkeys([n for n in match.operands if n in feeds] + list(feeds)))
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    inner = Graph()
    copies: dict[Node, Node] = {}
    for number, node in enumerate(operands):
        copies[node] = inner.placeholder(f"arg{number}")
        copies[node].meta = node.meta
    for node in nodes:
        copies[node] = inner.node_copy(node, copies.__getitem__)
    inner.output(tuple(copies[node] for node in results))
    with graph.inserting_after(nodes[-1]):
        whole = graph.call_function(composite, tuple(operands))
    values = tuple(node.meta["val"] for node in results)
    whole.meta = {**match.anchor.meta, "val": values, COMPOSITE: Composite(match.name, dict(match.attributes), inner)}
    last = whole
    for number, node in enumerate(results):
        with graph.inserting_after(last):
            last = graph.call_function(operator.getitem, (whole, number))
        last.meta = {**node.meta, "val": values[number]}
        node.replace_all_uses_with(last, delete_user_cb=lambda user: user not in inside)
    for node in reversed(nodes):
        graph.erase_node(node)


def sort_topologically(graph: Graph) -> None:
    """Put every node after what it reads, otherwise in the order in which they are."""
    nodes = list(graph.nodes)
    place = {node: number for number, node in enumerate(nodes)}
    waiting = {node: len(set(node.all_input_nodes)) for node in nodes}
    ready = [place[node] for node in nodes if not waiting[node]]
    heapq.heapify(ready)
    last: Any = graph._root
    while ready:
        node = nodes[heapq.heappop(ready)]
        last.append(node)
        last = node
        for user in node.users:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, place[user])
