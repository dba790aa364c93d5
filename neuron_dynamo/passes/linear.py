"""Undo the flattening around a matrix product: view -> (add)mm -> view over a batched x becomes one `linear` over the batch.

AOTAutograd decomposes nn.Linear on [..., in] into reshapes around a 2-d product; a dot_general needs none.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def batched_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., in] times weight [in, out], plus bias [out]: what the pass puts into the graph."""
    return F.linear(x, weight.t(), bias)


@lowering(batched_linear)
def _lower(b: Builder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    wide = x.dtype if bias is None else compute_dtype(x.dtype)
    product = dot_general(b, x, weight, ((x.ndim - 1,), (0,)), out_dtype=wide)
    return product if bias is None else b.convert(b.add(product, b.value(bias, wide, product.shape)), x.dtype)


def linear(gm: GraphModule) -> None:
    """Rewrite `gm` in place."""
    for product in list(gm.graph.nodes):
        if product.op != "call_function" or product.target not in (aten.mm.default, aten.addmm.default) or product.kwargs:
            continue
        *bias, flat, weight = product.args
        if not _flattens(flat) or (bias and bias[0].meta["val"].shape != weight.meta["val"].shape[1:]):
            continue
        source = flat.args[0]
        shape = (*source.meta["val"].shape[:-1], weight.meta["val"].shape[1])
        users = [u for u in product.users if u.target in _VIEWS and tuple(u.meta["val"].shape) == shape]
        if not users:
            continue
        with gm.graph.inserting_before(product):
            whole = gm.graph.call_function(batched_linear, (source, weight, *bias))
        whole.meta = {**users[0].meta, "stack_trace": product.meta.get("stack_trace")}
        for user in users:
            user.replace_all_uses_with(whole)
            gm.graph.erase_node(user)
        if product.users:
            # Others want the flat form: give them a view of the whole.
            with gm.graph.inserting_before(product):
                view = gm.graph.call_function(aten.view.default, (whole, list(product.meta["val"].shape)))
            view.meta = dict(product.meta)
            product.replace_all_uses_with(view)
        gm.graph.erase_node(product)
    gm.graph.eliminate_dead_code()


def _flattens(node: Node) -> bool:
    """Whether node views [..., k] (rank 3 or more) as [n, k]."""
    if not isinstance(node, Node) or node.target not in _VIEWS or not isinstance(node.args[0], Node):
        return False
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    return len(before) > 2 and len(after) == 2 and before[-1] == after[-1]
