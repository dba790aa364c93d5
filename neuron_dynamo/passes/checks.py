"""checks: ops that read a few numbers and raise, or not, called as such.

AOTAutograd orders them by a token that each takes and hands on (`with_effects`). They run on the host in their order anyway, after
the programs that they read from, so the token goes past them; where nothing else needs it, it goes.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

prims = torch.ops.prims

CHECKS = frozenset({torch.ops.aten._linalg_check_errors.default})
"""Ops without a result, whose only effect is an exception."""
TOKENS = frozenset({prims._make_token.default, prims._sink_tokens.default})
"""First and last of what a token orders."""


def checks(gm: GraphModule) -> None:
    """Rewrite `with_effects(token, check, ...)` of `gm` in place as `check(...)`."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, op, *args = node.args
        if op not in CHECKS or any(user.target is not operator.getitem for user in node.users):
            continue
        with gm.graph.inserting_before(node):
            check = gm.graph.call_function(op, tuple(args), node.kwargs)
        check.meta = {**node.meta, "val": None}
        for user in list(node.users):
            # Result 0 is the token; a check has no other that could be used.
            user.replace_all_uses_with(token)
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
    _drop_idle_tokens(gm)


def _drop_idle_tokens(gm: GraphModule) -> None:
    for sink in gm.graph.find_nodes(op="call_function", target=prims._sink_tokens.default):
        (tokens,) = sink.args
        kept = [t for t in tokens if not (isinstance(t, Node) and t.target is prims._make_token.default)]
        sink.args = (kept,)
        if not kept:
            gm.graph.erase_node(sink)
    for made in gm.graph.find_nodes(op="call_function", target=prims._make_token.default):
        if not made.users:
            gm.graph.erase_node(made)
