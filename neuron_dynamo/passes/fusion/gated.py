"""Gated linear units (Shazeer 2020): activation(gate) * up, with SiLU (SwiGLU) or GELU (GEGLU), as an op or written out."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.passes.fusion.gelu import written_out
from neuron_dynamo.passes.fusion.reading import calls, only_user, other, shape
from neuron_dynamo.passes.fusion.region import Match, Miss
from neuron_dynamo.passes.fusion.whole_ops import whole_op

aten = torch.ops.aten
_NAMES = {"silu": "swiglu", "gelu": "geglu"}


def gated(node: Any) -> Match | Miss | None:
    """The gated unit whose activation `node` is, or whose activation's tanh, erf or sigmoid."""
    activation = whole_op(node) if calls(node, aten.silu.default, aten.gelu.default) else written_out(node)
    if not isinstance(activation, Match) or activation.name not in _NAMES:
        return None
    name = _NAMES[activation.name]
    (gate,) = activation.operands or (node.args[0],)
    result = activation.nodes[0]
    product = next((u for u in result.users if calls(u, aten.mul.Tensor)), None)
    if product is None:
        return None
    up = other(product, result)
    if not isinstance(up, Node) or shape(up) != shape(result):
        return Miss(name, node, "the activation multiplies no tensor of its shape")
    if only_user(result) is None:
        return Miss(name, node, "the activation is read by others, too (it is saved for the backward)")
    return Match(name, (*activation.nodes, product), node, activation.attributes, (gate, up))
