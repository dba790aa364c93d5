"""checks: ops that read a few numbers and raise, or not, called as such.

AOTAutograd orders them by a token that each takes and hands on (`with_effects`). They run on the host in their order anyway, after
the programs that they read from, so the token goes past them; where nothing else needs it, it goes.

`_linalg_svd` raises from within when its input has inf or NaN, which a program cannot: it gets a check of its own.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten
prims = torch.ops.prims

CHECKS = frozenset({aten._linalg_check_errors.default, aten._assert_async.default, aten._assert_async.msg})
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
    for node in gm.graph.find_nodes(op="call_function", target=aten._linalg_svd.default):
        _check_finite(gm, node)


def _check_finite(gm: GraphModule, svd: Node) -> None:
    """Raise what the op raises for a matrix that is not finite: LAPACK's info is -4 there."""
    matrix = svd.args[0]
    assert isinstance(matrix, Node)
    fake = matrix.meta["val"]
    with_vectors = svd.args[2] if len(svd.args) > 2 else svd.kwargs.get("compute_uv", True)
    if fake.numel() == 0:
        return

    def call(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Node:
        node = gm.graph.call_function(op, args, kwargs)
        node.meta = {**svd.meta, "val": op(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]), **kwargs)}
        return node

    with gm.graph.inserting_before(svd), fake.fake_mode:
        # x * 0 is NaN for every x that is not finite. Without vectors ATen refuses NaN alone.
        suspect = call(aten.mul.Tensor, matrix, 0) if with_vectors else matrix
        spoilt = call(aten._to_copy.default, call(aten.isnan.default, suspect), dtype=torch.int32)
        info = call(aten.mul.Tensor, call(aten.amax.default, spoilt, [-2, -1]), -4)
        call(aten._linalg_check_errors.default, info, "linalg.svd", is_matrix=fake.ndim == 2)


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
