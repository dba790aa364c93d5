"""The state of a running inspection: where the graphs go that are only lowered, and the mode of their fake tensors."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from neuron_dynamo.report import GraphReport

_collecting: contextvars.ContextVar[list[GraphReport] | None] = contextvars.ContextVar("neuron_dynamo_inspection", default=None)


@contextlib.contextmanager
def collect() -> Iterator[list[GraphReport]]:
    """Within it graphs are lowered, not compiled; it yields the list that receives their reports."""
    graphs: list[GraphReport] = []
    token = _collecting.set(graphs)
    try:
        yield graphs
    finally:
        _collecting.reset(token)


def collecting() -> list[GraphReport] | None:
    """The list that the running inspection fills, or None outside of one."""
    return _collecting.get()


def fake_mode(tree: Any) -> FakeTensorMode:
    """The mode of the fake tensors among the arguments, else a new one."""
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch._subclasses.FakeTensor):
            return leaf.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)
