"""Scaled dot-product attention written out in matrix products: softmax(query key^T * scale + mask) value, as models do without SDPA.

Found from the softmax: up through scale and mask to the first product, down through casts and dropout to the second. PyTorch's own
decomposition of SDPA also makes rows of zeros where the mask leaves nothing: ops that stand between, and belong to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.passes.fusion.reading import COPIES, VIEWS, calls, is_cast, is_last_dim, shape
from neuron_dynamo.passes.fusion.region import Match, Miss, with_what_is_between

aten = torch.ops.aten
_NAME = "attention"
_PRODUCTS = (aten.bmm.default, aten.mm.default)
_SCALED = (aten.mul.Tensor, aten.div.Tensor, aten.mul.Scalar, aten.div.Scalar)
_MASKED = (aten.add.Tensor, aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor)
_BETWEEN = 8
_SHAPED = (*VIEWS, *COPIES, aten.expand.default, aten.transpose.int)


def attention(node: Any) -> Match | Miss | None:
    """The attention whose softmax `node` is, or whose softmax's gradient."""
    if calls(node, aten._softmax_backward_data.default):
        return _backward(node)
    if not calls(node, aten._softmax.default) or not is_last_dim(node.args[1], len(shape(node))):
        return None
    above, below = _up(node.args[0], masks=True), _down(node)
    if above is None:
        return Miss(_NAME, node, "the scores are no matrix product, scaled and masked") if below else None
    if not below:
        return Miss(_NAME, node, "the probabilities do not go into a matrix product")
    operands = (*above[-1].all_input_nodes, *below[0][-1].all_input_nodes[1:])
    return Match(_NAME, with_what_is_between((*above, node, *below[0]), _BETWEEN), node, {"written_out": True}, operands)


def _backward(node: Any) -> Match | Miss | None:
    """From the products with the value and the incoming gradient to the gradients of query and key."""
    above, below = _up(node.args[0], masks=False), _down(node)
    if above is None:
        return None
    if not below:
        return Miss(f"{_NAME}_backward", node, "the gradient of the scores does not go into a matrix product")
    nodes = dict.fromkeys((*above, node, *(n for way in below for n in way)))
    return Match(f"{_NAME}_backward", tuple(nodes), node, {"written_out": True})


def _up(node: Any, masks: bool) -> list[Node] | None:
    """The nodes from the softmax's operand up to the product."""
    way: list[Node] = []
    while isinstance(node, Node):
        if calls(node, *_PRODUCTS):
            return [*way, node]
        if is_cast(node) or calls(node, *_SHAPED, *_SCALED):
            way.append(node)
            node = node.args[0]
        elif masks and calls(node, *_MASKED):
            way.append(node)
            node = next((a for a in _scores(node) if _up(a, masks) is not None), None)
        else:
            return None
    return None


def _scores(node: Any) -> list[Node]:
    """What a masking op may mask."""
    return [a for a in node.args if isinstance(a, Node) and a.meta["val"].dtype.is_floating_point and shape(a) == shape(node)]


def _down(node: Any) -> list[list[Node]]:
    """The ways from `node` to the products that read it."""
    found: list[list[Node]] = []
    for user in node.users:
        if calls(user, *_PRODUCTS):
            found.append([user])
        elif is_cast(user) or calls(user, *_SHAPED, *_SCALED) or (calls(user, aten.where.self) and node in user.args[1:]):
            found += [[user, *way] for way in _down(user)]
    return found
