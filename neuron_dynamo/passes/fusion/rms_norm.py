"""RMSNorm (Zhang and Sennrich 2019), as models write it: x * rsqrt(mean(x^2) + eps), times a weight over the last dim.

Met forms: in float32 within a model of 16 bits (Llama, Qwen: the weight after the cast back; Gemma: before it), with the mean of x * x,
and without a weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.passes.fusion.reading import after, before_casts, calls, is_cast, is_last_dim, only_user, other, shape
from neuron_dynamo.passes.fusion.region import Match, Miss

aten = torch.ops.aten
_NAME = "rms_norm"


def rms_norm(node: Any) -> Match | Miss | None:
    """The RMSNorm whose reciprocal root `node` is."""
    if not calls(node, aten.rsqrt.default):
        return None
    shifted = node.args[0]
    if not calls(shifted, aten.add.Tensor, aten.add.Scalar) or not isinstance(shifted.args[1], (int, float)):
        return Miss(_NAME, node, "there is no constant eps under the root")
    mean = shifted.args[0]
    if not calls(mean, aten.mean.dim) or not is_last_dim(mean.args[1], len(shape(mean.args[0]))):
        return Miss(_NAME, node, "what is under the root is no mean over the last dim")
    if len(mean.args) < 3 or not mean.args[2]:
        return Miss(_NAME, node, "the mean does not keep its dim")
    square = mean.args[0]
    if not (calls(square, aten.pow.Tensor_Scalar) and square.args[1] == 2) and not (
        calls(square, aten.mul.Tensor) and square.args[0] is square.args[1]
    ):
        return Miss(_NAME, node, "what is averaged is no square")
    x = square.args[0]
    normal = next((u for u in node.users if calls(u, aten.mul.Tensor) and other(u, node) is x), None)
    if normal is None:
        return Miss(_NAME, node, "the root multiplies something else than what was squared")
    source, widening = before_casts(x)
    widening = widening if all(set(cast.users) <= {square, normal, *widening} for cast in widening) else ()
    nodes = [*widening, square, mean, shifted, node, normal]
    x = source if widening else x
    weight, last = None, normal
    following = only_user(normal)
    cast = following if following is not None and is_cast(following) else None
    scaled = after(cast or normal, (aten.mul.Tensor,))
    factor = None if scaled is None else other(scaled, cast or normal)
    if scaled is not None and isinstance(factor, Node) and shape(before_casts(factor)[0]) == shape(x)[-1:]:
        weight, casts = before_casts(factor)
        casts = casts if all(set(c.users) <= {scaled, *casts} for c in casts) else ()
        weight = weight if casts else factor
        nodes += [*([cast] if cast else []), *casts, scaled]
        last = scaled
    if last.meta["val"].dtype != source.meta["val"].dtype and (back := only_user(last)) is not None and is_cast(back):
        nodes.append(back)
    return Match(_NAME, tuple(nodes), node, {"eps": float(shifted.args[1])}, (x,) if weight is None else (x, weight))
