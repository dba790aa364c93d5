"""Run a function through the backend and hold it against eager, with every op native unless said otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import neuron_dynamo
from neuron_dynamo.errors import FallbackWarning
from tests.field.check import compiled, host_ops

__all__ = ["check_native", "compiled", "host_ops"]


def check_native(fn: Callable[..., Any], *args: Any, host: tuple[str, ...] = (), **tolerances: float) -> Any:
    """fn(*args) compiled equals eager, and exactly the ops named by `host` ran there. Returns the compiled result."""
    expected = fn(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        actual = compiled(fn)(*args)
    torch.testing.assert_close(actual, expected, **(tolerances or {"rtol": None, "atol": None}))
    graphs = neuron_dynamo.reports()
    assert graphs and sum(graph.native for graph in graphs)
    assert tuple(host_ops()) == host
    return actual
