"""Programs for targets that are not here: lowered for the target, found fit by preflight, and run by the host all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
from neuron_dynamo.lowering.program import Program
from neuron_dynamo.lowering.support import why_not_native
from neuron_dynamo.preflight import check as preflight
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import over_tensors, run, trace

_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def check_for(target: str, fn: Callable[..., Any], *args: Any, rtol: float | None = None, atol: float | None = None) -> Program:
    """fn(*args) eagerly beside its program for `target`, which preflight must let pass. Returns the program.

    As the precision pass does, float64 is narrowed to float32; int64 is kept.
    """
    flat, given = over_tensors(fn, args)
    expected = flat(*[tensor.clone() for tensor in given])
    tensors = [tensor.to(_NARROWER.get(tensor.dtype, tensor.dtype)) for tensor in given]
    gm = trace(flat, tensors)
    machine = get_target(target)
    for node in gm.graph.nodes:
        assert node.op != "call_function" or why_not_native(node, machine) is None, (node, why_not_native(node, machine))
    program = lower(gm.graph, machine)
    refused = [f for f in preflight(program.stablehlo, machine, program.sources) if f.refused]
    assert not refused, "\n".join(map(str, refused))
    for mine, theirs in zip(run(program, tensors), expected, strict=True):
        torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=rtol, atol=atol, equal_nan=True)
    return program


def text_for(target: str, fn: Callable[..., Any], *args: Any, rtol: float | None = None, atol: float | None = None) -> str:
    """check_for, for tests that look at the StableHLO text, which it returns."""
    return stablehlo_text(check_for(target, fn, *args, rtol=rtol, atol=atol).stablehlo)
