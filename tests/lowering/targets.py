"""Programs for targets that are not here: lowered for the target, found fit by preflight, and run by the host all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
from neuron_dynamo.lowering.support import why_not_native
from neuron_dynamo.preflight import check as preflight
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import run, trace

_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def check_for(target: str, fn: Callable[..., Any], *args: Any, rtol: float | None = None, atol: float | None = None) -> str:
    """fn(*args) eagerly beside its program for `target`, which preflight must let pass. Returns the StableHLO text.

    As the precision pass does, float64 is narrowed to float32; int64 is kept.
    """
    leaves, spec = pytree.tree_flatten(args)
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i].detach().to(_NARROWER.get(leaves[i].dtype, leaves[i].dtype)) for i in where]

    def flat(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for i, tensor in zip(where, given, strict=True):
            filled[i] = tensor
        results = pytree.tree_leaves(fn(*pytree.tree_unflatten(filled, spec)))
        return tuple(r for r in results if isinstance(r, torch.Tensor))

    expected = flat(*[leaves[i].detach().clone() for i in where])
    gm = trace(flat, tensors)
    machine = get_target(target)
    for node in gm.graph.nodes:
        assert node.op != "call_function" or why_not_native(node, machine) is None, (node, why_not_native(node, machine))
    program = lower(gm.graph, machine)
    refused = [f for f in preflight(program.stablehlo, machine, program.sources) if f.refused]
    assert not refused, "\n".join(map(str, refused))
    for mine, theirs in zip(run(program, tensors), expected, strict=True):
        torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=rtol, atol=atol, equal_nan=True)
    return stablehlo_text(program.stablehlo)
