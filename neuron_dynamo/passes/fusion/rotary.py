"""Rotary position embedding (Su et al. 2021) in the half-split form of GPT-NeoX and Llama: x * cos + rotate_half(x) * sin, with
rotate_half(x) = cat(-second half, first half) over the last dim."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.passes.fusion.reading import calls, is_last_dim, shape
from neuron_dynamo.passes.fusion.region import Match, Miss

aten = torch.ops.aten
_NAME = "rotary_embedding"


def rotary(node: Any) -> Match | Miss | None:
    """The rotation whose concatenation `node` is."""
    if not calls(node, aten.cat.default) or len(node.args[0]) != 2 or not calls(node.args[0][0], aten.neg.default):
        return None
    negated, first = node.args[0]
    second = negated.args[0]
    if not calls(first, aten.slice.Tensor) or not calls(second, aten.slice.Tensor) or first.args[0] is not second.args[0]:
        return Miss(_NAME, node, "its parts are no halves of one tensor")
    x = first.args[0]
    rank, width = len(shape(x)), shape(x)[-1]
    if not is_last_dim(node.args[1] if len(node.args) > 1 else 0, rank):
        return Miss(_NAME, node, "the halves are not put together over the last dim")
    if not _is_half(first, rank, 0, width // 2) or not _is_half(second, rank, width // 2, width):
        return Miss(_NAME, node, "the parts are not the halves of the last dim")
    turned = next((u for u in node.users if calls(u, aten.mul.Tensor)), None)
    if turned is None:
        return Miss(_NAME, node, "the turned half is not multiplied")
    total = next((u for u in turned.users if calls(u, aten.add.Tensor) and u.kwargs.get("alpha", 1) == 1), None)
    if total is None:
        return Miss(_NAME, node, "the product with the sine is not added to anything")
    straight = total.args[0] if total.args[1] is turned else total.args[1]
    if not calls(straight, aten.mul.Tensor) or x not in straight.args:
        return Miss(_NAME, node, "what it is added to is no product of the same tensor")
    cosine = straight.args[1] if straight.args[0] is x else straight.args[0]
    sine = turned.args[1] if turned.args[0] is node else turned.args[0]
    if not isinstance(cosine, Node) or not isinstance(sine, Node):
        return Miss(_NAME, node, "cosine or sine is a number")
    return Match(_NAME, (first, second, negated, node, turned, straight, total), node, {}, (x, cosine, sine))


def _is_half(part: Any, rank: int, start: int, end: int) -> bool:
    given = [*part.args[1:], *[0, 0, None, 1][len(part.args) - 1 :]]
    dim, first, last, step = given
    size = shape(part.args[0])[-1]
    limit = size if last is None else min(int(last), size)
    return is_last_dim(dim, rank) and (first or 0) == start and limit == end and step == 1
