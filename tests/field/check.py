"""Hold compiled functions against eager; used by all tests of field cases."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import neuron_dynamo


def compiled(fn: Callable[..., Any], fullgraph: bool = True, dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="neuron", fullgraph=fullgraph, dynamic=dynamic, options=options or None)


def host_ops() -> list[str]:
    """Ops that ran on the host for want of a lowering, over all graphs of this test."""
    return [op.name for graph in neuron_dynamo.reports() for op in graph.ops if op.placement == "host"]


def check(fn: Callable[..., Any], *args: Any, fullgraph: bool = True, native: bool = True, stride: bool = False, **close: Any) -> Any:
    """fn compiled gives what eager gives (values, and strides if asked) and leaves its arguments as eager does. Returns the result."""
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    expected = fn(*theirs)
    actual = compiled(fn, fullgraph)(*ours)
    close.setdefault("equal_nan", True)
    torch.testing.assert_close(actual, expected, check_stride=stride, **close)
    torch.testing.assert_close(ours, theirs, **close)
    if native:
        assert not host_ops()
    return actual


def check_gradients(fn: Callable[..., Any], *args: torch.Tensor, native: bool = True, **close: Any) -> None:
    """Result and gradients of every floating-point argument, under a loss that tells elements apart."""
    outcomes = []
    for f in (fn, compiled(fn)):
        given = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
        out = f(*given)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
        outcomes.append([out.detach(), *(a.grad for a in given)])
    torch.testing.assert_close(outcomes[1], outcomes[0], **close)
    if native:
        assert not host_ops()
