"""From the joint forward and backward graph to the two that are compiled: AOTAutograd's partition_fn."""

from __future__ import annotations

from typing import Any

from torch._functorch import config as functorch_config
from torch.fx import GraphModule

from neuron_dynamo.passes.cse import cse
from neuron_dynamo.passes.rng import rng


def partition_joint(joint: GraphModule, joint_inputs: Any, mode: str, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """`rng` (with the option's `mode`) and `cse` on the joint graph, then PyTorch's min-cut partitioner: (forward, backward)."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    rng(joint, mode)
    cse(joint)
    joint.recompile()
    with functorch_config.patch(cse=False):
        forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)
    return forward, backward
