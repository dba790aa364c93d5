"""ATen ops that are a composite by themselves."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.passes.fusion.region import Match, Miss

aten = torch.ops.aten
Attributes = dict[str, bool | int | float | str]


def _argument(node: Any, name: str) -> Any:
    """The argument called `name`, its default where it is not given."""
    for position, spec in enumerate(node.target._schema.arguments):
        if spec.name == name:
            if name in node.kwargs:
                return node.kwargs[name]
            return node.args[position] if position < len(node.args) else spec.default_value
    raise KeyError(name)


def _dim(node: Any) -> int:
    value = node.meta["val"]
    rank = (value[0] if isinstance(value, (tuple, list)) else value).ndim
    return int(_argument(node, "dim") % max(rank, 1))


def _attention(node: Any) -> Attributes:
    query = _argument(node, "query")
    scale = _argument(node, "scale")
    return {
        "is_causal": bool(_argument(node, "is_causal")),
        "has_mask": _argument(node, "attn_mask") is not None,
        "scale": float(1 / math.sqrt(query.meta["val"].shape[-1]) if scale is None else scale),
    }


_OPS: dict[Any, tuple[str, Callable[[Node], Attributes]]] = {
    aten.native_layer_norm.default: ("layer_norm", lambda n: {"eps": float(_argument(n, "eps"))}),
    aten.native_layer_norm_backward.default: ("layer_norm_backward", lambda n: {}),
    aten._softmax.default: ("softmax", lambda n: {"dim": _dim(n)}),
    aten._softmax_backward_data.default: ("softmax_backward", lambda n: {"dim": _dim(n)}),
    aten._log_softmax.default: ("log_softmax", lambda n: {"dim": _dim(n)}),
    aten._log_softmax_backward_data.default: ("log_softmax_backward", lambda n: {"dim": _dim(n)}),
    aten.gelu.default: ("gelu", lambda n: {"approximate": str(_argument(n, "approximate"))}),
    aten.gelu_backward.default: ("gelu_backward", lambda n: {"approximate": str(_argument(n, "approximate"))}),
    aten.silu.default: ("silu", lambda n: {}),
    aten.silu_backward.default: ("silu_backward", lambda n: {}),
    aten.embedding.default: ("embedding", lambda n: {}),
    aten.embedding_dense_backward.default: ("embedding_backward", lambda n: {}),
    aten.topk.default: (
        "topk",
        lambda n: {
            "k": int(_argument(n, "k")),
            "dim": _dim(n),
            "largest": bool(_argument(n, "largest")),
            "sorted": bool(_argument(n, "sorted")),
        },
    ),
    aten._scaled_dot_product_flash_attention_for_cpu.default: ("attention", _attention),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: ("attention_backward", _attention),
}


def whole_op(node: Any) -> Match | Miss | None:
    """The composite that the op of `node` is."""
    if node.op != "call_function" or node.target not in _OPS:
        return None
    name, attributes = _OPS[node.target]
    parts = tuple(user for user in node.users if user.target is operator.getitem)
    return Match(name, (node, *parts), node, attributes(node))
