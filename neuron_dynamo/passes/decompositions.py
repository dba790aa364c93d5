"""The decomposition table handed to AOTAutograd: PyTorch's own decompositions, except for ops that lowering/ops takes whole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from neuron_dynamo import custom
from neuron_dynamo.lowering import registry
from neuron_dynamo.passes.channels_last import channels_last_decompositions
from neuron_dynamo.passes.distances import distance_decompositions
from neuron_dynamo.passes.foreach import foreach_decompositions
from neuron_dynamo.passes.fractional_pooling import fractional_pooling_decompositions
from neuron_dynamo.passes.fused_layers import fused_layer_decompositions
from neuron_dynamo.passes.fused_optimizers import fused_optimizer_decompositions
from neuron_dynamo.passes.histograms import histogram_decompositions
from neuron_dynamo.passes.linear_algebra import linear_algebra_decompositions
from neuron_dynamo.passes.linear_cross_entropy import linear_cross_entropy_decompositions
from neuron_dynamo.passes.margin_losses import margin_loss_decompositions
from neuron_dynamo.passes.padded import empty_decompositions
from neuron_dynamo.passes.ranges import range_decompositions
from neuron_dynamo.passes.segments import segment_decompositions
from neuron_dynamo.passes.trilinear import trilinear_decompositions

aten = torch.ops.aten

_BEYOND_CORE: tuple[Any, ...] = (
    aten.as_strided_copy,
    aten.dist,
    aten.ldexp,
    aten.narrow_copy,
    aten.permute_copy,
    aten.rrelu_with_noise_backward,
    aten.tril_indices,
    aten.triu_indices,
    aten.unbind_copy,
    aten.view_copy,
)
"""Ops that PyTorch can decompose, though its core set keeps them whole, and that have no rule of ours."""

_WHOLE: tuple[Any, ...] = (aten.bernoulli.default,)
"""Random ops that passes/rng.py wants to see."""


@functools.cache
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Op overload -> decomposition. Ops with a lowering rule are left whole."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table.update(get_decompositions(list(_BEYOND_CORE)))
    table.update(channels_last_decompositions())
    table.update(foreach_decompositions())
    table.update(fused_layer_decompositions())
    table.update(linear_algebra_decompositions())
    table.update(distance_decompositions())
    table.update(margin_loss_decompositions())
    table.update(range_decompositions())
    table.update(linear_cross_entropy_decompositions())
    table.update(segment_decompositions())
    table.update(fractional_pooling_decompositions())
    table.update(trilinear_decompositions())
    table.update(histogram_decompositions())
    table.update(fused_optimizer_decompositions())
    table.update(empty_decompositions())
    taken = {*registry.registered(), *_WHOLE} - custom.taken()
    return {op: function for op, function in table.items() if op not in taken}
