"""FX -> FX passes, one a file. `run` applies them in order to a graph after AOTAutograd."""

from __future__ import annotations

from torch.fx import GraphModule

from neuron_dynamo.passes.checks import checks
from neuron_dynamo.passes.linear import linear
from neuron_dynamo.passes.output_layout import output_layout
from neuron_dynamo.passes.output_views import output_views
from neuron_dynamo.passes.rng import place_draws, rng
from neuron_dynamo.passes.ternary import ternary


def run(gm: GraphModule, visible: int, random: str) -> None:
    """Apply every pass to `gm` in place. Its first `visible` outputs go to the caller, with eager's strides; `random` is the
    option `rng`."""
    checks(gm)
    ternary(gm)
    rng(gm, random)
    place_draws(gm, random)
    linear(gm)
    output_views(gm)
    output_layout(gm, visible)
    gm.graph.lint()
