"""Gated linear units (Shazeer 2020): activation(gate) * up, with SiLU (SwiGLU) or GELU (GEGLU)."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.passes.fusion.reading import calls, only_user, other, shape
from neuron_dynamo.passes.fusion.region import Match, Miss

aten = torch.ops.aten
_NAMES = {aten.silu.default: "swiglu", aten.gelu.default: "geglu"}


def gated(node: Any) -> Match | Miss | None:
    """The gated unit whose activation `node` is."""
    if node.op != "call_function" or node.target not in _NAMES:
        return None
    name = _NAMES[node.target]
    product = next((u for u in node.users if calls(u, aten.mul.Tensor)), None)
    if product is None:
        return None
    up = other(product, node)
    if not isinstance(up, Node) or shape(up) != shape(node):
        return Miss(name, node, "the activation multiplies no tensor of its shape")
    if only_user(node) is None:
        return Miss(name, node, "the activation is read by others, too (it is saved for the backward)")
    approximate = {"approximate": str(node.kwargs.get("approximate", "none"))} if name == "geglu" else {}
    return Match(name, (node, product), node, approximate, (node.args[0], up))
