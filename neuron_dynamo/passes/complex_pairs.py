"""Complex graphs for targets without complex types: every complex value becomes a pair of real tensors, its parts.

Complex inputs and outputs stay complex for the caller: on the host they are viewed as real tensors with a last dim of 2, which costs
nothing. An op without a rule in complex_pair_rules.py runs on the host, between such views, and placement says why.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from neuron_dynamo.passes.complex_pair_rules import RULES, Pair, Unpaired
from neuron_dynamo.passes.expand import mode_of
from neuron_dynamo.passes.output_views import HOST
from neuron_dynamo.target import Target

aten = torch.ops.aten

_BORDERS = (aten.view_as_real.default, aten.view_as_complex.default, aten.clone.default, aten.permute.default)
"""Ops that have a complex tensor only where this pass has put them: views, a resolved conjugate input, an output's dims in order."""


def complex_pairs(gm: GraphModule, target: Target) -> GraphModule:
    """`gm`, or where it has complex values and `target` has no such type, a graph of static shapes over pairs in its place."""
    if torch.complex64 in target.dtypes or not any(_is_complex(v) for n in gm.graph.nodes for v in pytree.tree_leaves(n.meta.get("val"))):
        return gm
    inputs = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    mode = mode_of(gm)
    with _disable_current_modes(), torch.no_grad():
        fakes = [_like(mode, v) if isinstance(v, torch.Tensor) else v for v in inputs]
        with mode, preserve_node_meta():
            made: GraphModule = make_fx(_Pairing(gm).run, tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)
    for node in made.graph.nodes:
        if node.target in _BORDERS and any(_is_complex(n.meta["val"]) for n in (node, *node.all_input_nodes)):
            node.meta[HOST] = "border between a complex tensor and its parts"
    made.graph.eliminate_dead_code()
    made.recompile()
    return made


def _is_complex(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


def _like(mode: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    with mode:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        return made.conj() if value.is_conj() else made


def _split(value: Any) -> Any:
    """A complex tensor as a Pair; anything else itself."""
    if not _is_complex(value):
        return value
    parts = torch.view_as_real(value.resolve_conj())
    return Pair(parts.select(-1, 0), parts.select(-1, 1), value)


def _join(value: Any) -> Any:
    """Inverse of _split."""
    return torch.view_as_complex(torch.stack([value.real, value.imag], -1)) if isinstance(value, Pair) else value


class _Pairing(Interpreter):
    """Runs a graph with a Pair for every complex value."""

    _node: Node

    def run_node(self, n: Node) -> Any:
        self._node = n
        return super().run_node(n)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _split(super().placeholder(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _split(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        made = pytree.tree_leaves(self._node.meta.get("val"))
        if not any(map(_is_complex, made)) and not any(isinstance(a, Pair) for a in pytree.tree_leaves((args, kwargs))):
            return super().call_function(target, args, kwargs)
        if target is aten.copy_.default and isinstance(args[0], Pair):
            aten.copy_.default(args[0].origin, _join(args[1]))
            return args[1]
        rule = RULES.get(target)
        try:
            if rule is not None:
                return rule(*args, **kwargs)
        except Unpaired:
            pass
        if target is operator.getitem:
            return super().call_function(target, args, kwargs)  # of a list of pairs
        args, kwargs = pytree.tree_map(_join, (args, kwargs))
        return pytree.tree_map(_split, super().call_function(target, args, kwargs))

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        sources: Any = self._node.args[0]
        return tuple(_returned(v, n.meta["val"].stride()) if isinstance(v, Pair) else v for v, n in zip(args[0], sources, strict=True))


def _returned(pair: Pair, strides: tuple[int, ...]) -> torch.Tensor:
    """The complex tensor of a pair, its dims in memory in the order of `strides`."""
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    if order == sorted(order):
        return _join(pair)  # type: ignore[no-any-return]
    dense: torch.Tensor = _join(Pair(pair.real.permute(order), pair.imag.permute(order)))
    return dense.permute([order.index(d) for d in range(len(order))])
