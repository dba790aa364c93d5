"""addcmul and addcdiv put together again, which Dynamo takes apart where their `value` is given.

In parts, 16-bit numbers would be rounded after each, and of several dtypes the parts would be computed in their own; ATen rounds once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import inductor_prims
from torch.fx import GraphModule, Node

aten = torch.ops.aten

_OF_PART = {aten.mul.Tensor: aten.addcmul.default, aten.div.Tensor: aten.addcdiv.default}


def ternary(gm: GraphModule) -> None:
    """Rewrite `gm` in place."""
    for node in list(gm.graph.nodes):
        found = _in_place(node) or _out_of_place(node)
        if found is None:
            continue
        part, value, x = found
        with gm.graph.inserting_before(node):
            whole = gm.graph.call_function(_OF_PART[part.target], (x, *part.args), {"value": value})
        whole.meta = dict(node.meta)
        node.replace_all_uses_with(whole)
        gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code()


def _in_place(node: Any) -> tuple[Any, Any, Any] | None:
    """The product or quotient, the value and x, if `node` is what Dynamo makes of x.addcmul_ or x.addcdiv_; nothing else makes it."""
    if node.target is not inductor_prims.fma:
        return None
    part, value, x = node.args
    return (part, value, x) if _is_part(part, node) and _is_number(value) and isinstance(x, Node) else None


def _out_of_place(node: Any) -> tuple[Any, Any, Any] | None:
    """The same, if it is what Dynamo makes of torch.addcdiv. The three ops may be the user's own: the place that they come from tells."""
    if node.target is not aten.add.Tensor or node.kwargs or not all(isinstance(operand, Node) for operand in node.args):
        return None
    x, scaled = node.args
    if scaled.target is not aten.mul.Tensor or not _is_used_once(scaled, node) or not _is_number(scaled.args[1]):
        return None
    quotient, value = scaled.args
    if not _is_part(quotient, scaled) or quotient.target is not aten.div.Tensor:
        return None
    place, *others = {str(n.meta.get("stack_trace", "")).rstrip() for n in (quotient, scaled, node)}
    # Carets below the last line mark one expression of it; Python 3.10 has none, nor has code without a source.
    one_call = place.endswith("^") or "addcdiv" in place.rpartition("\n")[2]
    return (quotient, value, x) if one_call and not others else None


def _is_part(part: Any, user: Node) -> bool:
    return isinstance(part, Node) and part.target in _OF_PART and all(isinstance(n, Node) for n in part.args) and _is_used_once(part, user)


def _is_used_once(node: Node, user: Node) -> bool:
    return list(node.users) == [user]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex))
