"""Give ops that fell back to the host the strides that PyTorch traced them with: some views are only legal, and as_strided only
right, on those, and results take their layout from them. Programs hand over row-major tensors."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from neuron_dynamo.passes.output_views import HOST
from neuron_dynamo.runtime.layout import with_strides


def host_layout(gm: GraphModule, forced: dict[Node, str], natural: dict[Node, str]) -> None:
    """Insert copies in place; they are added to `natural`. `forced` are the ops that run on the host for want of a lowering."""
    for node in forced:
        for source in list(node.all_input_nodes):
            value = source.meta.get("val")
            if source in forced or HOST in source.meta or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                continue
            if value.is_contiguous() or not all(isinstance(n, int) for n in value.stride()):
                continue
            with gm.graph.inserting_before(node):
                laid_out = gm.graph.call_function(with_strides, (source, list(value.stride())))
            laid_out.meta = {**source.meta, HOST: "layout of a host op's operand"}
            natural[laid_out] = laid_out.meta[HOST]
            node.replace_input_with(source, laid_out)
