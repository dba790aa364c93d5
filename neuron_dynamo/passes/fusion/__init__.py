"""Fusion: named computations that models are made of become composites. Run on a graph of static shapes that is to be one Program.

A composite keeps its decomposition, which are the very nodes that it was made of: a compiler that knows the name may take it whole, every
other one inlines it. Larger patterns come before the ops that they hold.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Graph, Node

from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.passes.fusion.attention import attention
from neuron_dynamo.passes.fusion.cross_entropy import cross_entropy
from neuron_dynamo.passes.fusion.gated import gated
from neuron_dynamo.passes.fusion.gelu import gradient, written_out
from neuron_dynamo.passes.fusion.region import Match, Miss, outline, sort_topologically, why_not_one
from neuron_dynamo.passes.fusion.rms_norm import rms_norm
from neuron_dynamo.passes.fusion.rotary import rotary
from neuron_dynamo.passes.fusion.whole_ops import whole_op
from neuron_dynamo.report import FusionReport

Pattern = Callable[[Node], Match | Miss | None]
PATTERNS: tuple[Pattern, ...] = (attention, cross_entropy, rms_norm, rotary, gradient, gated, written_out, whole_op)


def fuse(graph: Graph) -> list[FusionReport]:
    """Replace every match in `graph`; returns them, with the near misses, in the graph's order within each pattern."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    told: list[FusionReport] = []
    for pattern in PATTERNS:
        for node in list(order):
            found = pattern(node) if node in order else None
            if isinstance(found, Match):
                reason = why_not_one(found) if order.keys() >= set(found.nodes) else "a node of it is part of another one"
                if not reason:
                    told.append(FusionReport(found.name, len(found.nodes), "", source_of(found.anchor)))
                    outline(graph, found, order)
                    for replaced in found.nodes:
                        del order[replaced]
                    continue
                found = Miss(found.name, found.anchor, reason)
            if isinstance(found, Miss):
                told.append(FusionReport(found.name, 0, found.reason, source_of(found.anchor)))
    sort_topologically(graph)
    graph.lint()
    return told
