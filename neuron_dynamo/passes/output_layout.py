"""Give the caller the strides that eager PyTorch would: programs return row-major tensors, so an output with another layout is
computed in its memory order and permuted on the host (a view), or copied where its strides are not dense."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from neuron_dynamo.passes.output_views import HOST
from neuron_dynamo.runtime.layout import copy_to_strides

aten = torch.ops.aten


def output_layout(gm: GraphModule, visible: int) -> None:
    """Rewrite the first `visible` outputs of `gm` in place: those that the caller sees, as against tensors saved for backward."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    values = list(output.args[0])
    for index, node in enumerate(values[:visible]):
        if isinstance(node, Node) and node.op == "call_function" and HOST not in node.meta:
            value = node.meta.get("val")
            if (
                isinstance(value, torch.Tensor)
                and value.layout == torch.strided
                and not (value.is_contiguous() and value.storage_offset() == 0)
            ):
                # Values of a graph that a pass traced anew have a fake mode of their own.
                with gm.graph.inserting_before(output), _disable_current_modes():
                    values[index] = _laid_out(gm, node, value)
    output.args = (tuple(values),)


def _laid_out(gm: GraphModule, node: Node, value: torch.Tensor) -> Node:
    order = sorted(range(value.ndim), key=lambda d: value.stride()[d], reverse=True)
    dense = value.permute(order)
    if value.storage_offset() != 0:  # AOTAutograd rebuilds views of mutated inputs from what it finds here
        result = gm.graph.call_function(copy_to_strides, (node, list(value.stride()), int(value.storage_offset())))
    elif dense.is_contiguous():
        compact = gm.graph.call_function(aten.permute.default, (node, order))
        compact.meta = {**node.meta, "val": dense.clone(memory_format=torch.contiguous_format)}
        # Not permute: a dim of size 1 may have any stride.
        result = gm.graph.call_function(aten.as_strided.default, (compact, list(value.shape), list(value.stride()), 0))
    else:
        result = gm.graph.call_function(copy_to_strides, (node, list(value.stride())))
    result.meta = {**node.meta, HOST: "layout of an output"}
    return result
