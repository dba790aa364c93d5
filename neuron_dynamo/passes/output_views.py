"""Return views as views: an output that is a chain of view ops over some base is computed up to the base, and the chain is
replayed on the host, where that saves a copy or keeps an alias or eager's strides."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from neuron_dynamo.passes.partition import NARROWING_VIEWS, VIEWS, mutates

aten = torch.ops.aten

HOST = "neuron_dynamo_host"
"""Key in node.meta of a node that runs on the host by nature, with the reason."""


def output_views(gm: GraphModule) -> None:
    """Rewrite the outputs of `gm` in place; the replayed nodes carry meta[HOST]."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    overwritten = {n.args[0] for n in gm.graph.nodes if mutates(n)}
    whole = {node: _chain(node, overwritten) for node in output.all_input_nodes}
    shared: Counter[Any] = Counter(chain[-1].args[0] if chain else node for node, chain in whole.items())
    chains = {node: chain if _kept(chain, shared) else _above_narrowing(chain) for node, chain in whole.items()}
    bases = Counter(chain[-1].args[0] if chain else node for node, chain in chains.items())
    replayed: dict[Node, Node] = {}

    def replay(node: Any) -> Any:
        chain = chains.get(node, []) if isinstance(node, Node) else []
        if not chain:
            return node
        base: Any = chain[-1].args[0]
        if base.op != "placeholder" and bases[base] == 1 and node.meta["val"].is_contiguous():
            return node  # dense either way, and nobody shares it: a reshape within the program is free
        if base.op != "placeholder" and not _same_layout(chain):
            return node
        with gm.graph.inserting_before(output):
            for view in reversed(chain):
                copy = replayed.get(view)
                if copy is None:
                    copy = gm.graph.node_copy(view, lambda n, view=view, base=base: base if n is view.args[0] else n)  # type: ignore[misc]
                    if copy.target in (aten.view.default, aten._unsafe_view.default):
                        copy.target = aten.reshape.default  # a tensor saved by the forward may be denser than it was traced
                    copy.meta = {**view.meta, HOST: "view of an output"}
                    replayed[view] = copy
                base = copy
        return base

    output.args = (torch.fx.node.map_aggregate(output.args[0], replay),)
    gm.graph.eliminate_dead_code()


def _same_layout(chain: list[Node]) -> bool:
    """Whether the views give the traced strides over a row-major base too, which is what a program returns."""
    with _disable_current_modes():
        value = torch.empty(chain[-1].args[0].meta["val"].shape, device="meta")  # type: ignore[union-attr]
        try:
            for view in reversed(chain):
                value = view.target(value, *view.args[1:], **view.kwargs)  # type: ignore[operator]
        except (RuntimeError, ValueError):
            return False
    traced = chain[0].meta["val"]
    return bool(value.stride() == traced.stride() and value.storage_offset() == traced.storage_offset())


def _chain(node: Node, overwritten: set[Any]) -> list[Node]:
    """View nodes from `node` down to (not including) its base; empty where it must be computed."""
    chain: list[Node] = []
    while node.op == "call_function" and node.target in VIEWS and isinstance(node.args[0], Node):
        chain.append(node)
        node = node.args[0]
    if node.op == "placeholder":
        return [] if node in overwritten else chain
    return chain


def _kept(chain: list[Node], shared: Counter[Any]) -> bool:
    """Whether the base of a chain exists after the call anyway: an input, or what other outputs are (views of) too."""
    base = chain[-1].args[0] if chain else None
    return isinstance(base, Node) and (base.op == "placeholder" or shared[base] > 1)


def _above_narrowing(chain: list[Node]) -> list[Node]:
    """The views above the last narrowing one, which would keep the whole of a base alive that nobody else wants."""
    for position, view in enumerate(chain):
        if view.target in NARROWING_VIEWS:
            return chain[:position]
    return chain
