"""FX -> FX passes, one a file. `run` applies them in order to a graph after AOTAutograd."""

from __future__ import annotations

from torch.fx import GraphModule

from neuron_dynamo.passes.linear import linear
from neuron_dynamo.passes.output_views import output_views

PASSES = (linear, output_views)


def run(gm: GraphModule) -> None:
    """Apply every pass to `gm` in place."""
    for one in PASSES:
        one(gm)
    gm.graph.lint()
