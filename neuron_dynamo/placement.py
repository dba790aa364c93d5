"""Placement: for every node of a graph, native or host, and why."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule, Node

from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.lowering.support import why_not_native
from neuron_dynamo.options import Options
from neuron_dynamo.passes.checks import CHECKS, TOKENS
from neuron_dynamo.passes.host_layout import host_layout
from neuron_dynamo.passes.output_views import HOST
from neuron_dynamo.passes.partition import mutates
from neuron_dynamo.report import OpReport


@dataclass(frozen=True)
class Placement:
    """`natural` are host nodes that belong there (views of outputs, mutations of inputs, random state); `forced` are ops that
    could not be lowered, with the reason."""

    nodes: tuple[Node, ...]
    natural: dict[Node, str]
    forced: dict[Node, str]

    def is_native(self, node: Node) -> bool:
        return node not in self.natural and node not in self.forced

    def ops(self) -> list[OpReport]:
        """One row a call_function node, in graph order."""
        rows = []
        for node in self.nodes:
            where = "runtime" if node in self.natural else "host" if node in self.forced else "native"
            rows.append(OpReport(op_name(node), where, self.natural.get(node) or self.forced.get(node, ""), source_of(node)))
        return rows


def place(gm: GraphModule, options: Options) -> Placement:
    """Decide for each call of `gm`. A get_attr runs where its tensor is lowered, that is natively, unless only host nodes use it."""
    target = options.resolved_target
    natural: dict[Node, str] = {}
    forced: dict[Node, str] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if HOST in node.meta:
            natural[node] = node.meta[HOST]
        elif node.target in CHECKS:
            natural[node] = "raises what eager raises"
        elif node.target in TOKENS:
            natural[node] = "order of effects"
        elif mutates(node):
            natural[node] = "writes into an input"
        elif reason := why_not_native(node, target):
            forced[node] = reason
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node.users and all(user in natural or user in forced for user in node.users):
            natural[node] = "constant of a host op"
    calls = tuple(n for n in gm.graph.nodes if n.op == "call_function")
    host_layout(gm, forced, natural)
    return Placement(calls, natural, forced)


def whole_graph_on_host(gm: GraphModule, placement: Placement) -> Placement:
    """Every node on the host: `fallback="eager"` for a graph with an op that cannot be lowered."""
    rest = {n: "another op of the graph has no native lowering" for n in placement.nodes if placement.is_native(n)}
    constants = {n: "constant of a host op" for n in gm.graph.nodes if n.op == "get_attr"}
    return Placement(placement.nodes, {**placement.natural, **constants}, {**rest, **placement.forced})


def op_name(node: Node) -> str:
    """The op's name as users know it, e.g. `aten.add.Tensor`."""
    return (
        node.target
        if isinstance(node.target, str)
        else getattr(node.target, "__name__", "")
        if "<function" in str(node.target)
        else str(node.target)
    )
