"""Ops of 16-bit numbers put in float32 in Dynamo's graph, before autograd, because PyTorch's gradient formula cancels.

The gradient of special.i0e is i1e(x) - sgn(x) i0e(x) (derivatives.yaml), a small difference of values that were rounded to 16 bits.
The op itself loses nothing: it is computed in float32 and rounded once either way.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

_OPS = frozenset({torch.special.i0e, torch.ops.aten.special_i0e, torch.ops.aten.special_i0e.default})


def widen_gradients(gm: GraphModule) -> None:
    """Rewrite the calls in `gm` and its sub-graphs in place."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            changed = [_widen(module, node) for node in list(module.graph.nodes)]
            if any(changed):
                module.recompile()


def _widen(gm: GraphModule, node: Node) -> bool:
    if node.op != "call_function" or node.target not in _OPS or node.kwargs:
        return False
    (x,) = node.args
    if not isinstance(x, Node):
        return False
    value = x.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.bfloat16, torch.float16):
        return False
    with gm.graph.inserting_before(node):
        node.args = (gm.graph.call_method("to", (x, torch.float32)),)
    with gm.graph.inserting_after(node):
        narrow = gm.graph.call_method("to", (node, value.dtype))
    node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
    narrow.meta, node.meta = node.meta, {k: v for k, v in node.meta.items() if k != "example_value"}
    return True
