"""Types that a target lacks: float64 is computed as float32, and complex128 as complex64, where the option `precision` allows it.

Inputs are narrowed and outputs widened on the host, so that the caller sees the dtypes that eager PyTorch gives. Integers of 64 bits are
left to the target's compiler, which keeps the lower 32: indices and counts that fit lose nothing, and whether others do, only data tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Container
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from neuron_dynamo.errors import PrecisionError, PrecisionWarning
from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.passes.output_views import HOST
from neuron_dynamo.target import Target

aten = torch.ops.aten
_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def precision(gm: GraphModule, target: Target, policy: str) -> GraphModule:
    """`gm`, or a narrower graph in its place. `policy` is the option: warn, narrow or error. Raises PrecisionError."""
    if not target.wide_integers:
        _tell(target, policy, _of_types(gm, {torch.int64}), "keeps the lower 32 bits of an integer", "are int64")
    lacking = {wide: narrow for wide, narrow in _NARROWER.items() if wide not in target.dtypes}
    found = _of_types(gm, lacking)
    if not found:
        return gm
    dtype = _first(found)[1]
    _tell(target, policy, found, f"has no {dtype}", f"are computed as {lacking[dtype]}")
    return _narrowed(gm, lacking)


def _of_types(gm: GraphModule, dtypes: Container[torch.dtype]) -> list[tuple[Node, torch.dtype]]:
    return [(node, value.dtype) for node in gm.graph.nodes for value in _tensors(node) if value.dtype in dtypes]


def _first(found: list[tuple[Node, torch.dtype]]) -> tuple[Node, torch.dtype]:
    """The first that is computed, else the first."""
    return next((pair for pair in found if pair[0].op == "call_function"), found[0])


def _tell(target: Target, policy: str, found: list[tuple[Node, torch.dtype]], lack: str, consequence: str) -> None:
    """Warn or raise, as the policy has it, if anything was found."""
    if not found or policy not in ("warn", "error"):
        return
    node, _ = _first(found)
    if policy == "error":
        raise PrecisionError(
            f"target {target.name} {lack}, and precision='error'",
            op=str(node.target),
            source=source_of(node),
            remedy='compute in a type that the target has, or set options={"precision": "narrow"}',
        )
    text = f"ND111: target {target.name} {lack}: {len(found)} values {consequence}"
    warnings.warn(f"{text}\n  first: {node.target} at {source_of(node)}", PrecisionWarning, stacklevel=3)


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    return [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(v, torch.Tensor)]


class _Narrowing(Interpreter):
    """Runs a graph in the narrower types."""

    def __init__(self, gm: GraphModule, lacking: dict[torch.dtype, torch.dtype]) -> None:
        super().__init__(gm)
        self._lacking = lacking

    def _narrow(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in self._lacking:
            return aten._to_copy.default(value, dtype=self._lacking[value.dtype])
        return self._lacking.get(value, value) if isinstance(value, torch.dtype) else value

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._narrow(super().placeholder(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._narrow(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = torch.fx.node.map_aggregate((args, kwargs), self._narrow)
        return super().call_function(target, args, kwargs)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        (node,) = (n for n in self.module.graph.nodes if n.op == "output")  # type: ignore[union-attr]
        traced = node.args[0]

        def widened(value: Any, source: Any) -> Any:
            wanted = source.meta["val"] if isinstance(source, Node) else None
            if isinstance(wanted, torch.Tensor) and isinstance(value, torch.Tensor) and value.dtype != wanted.dtype:
                return aten._to_copy.default(value, dtype=wanted.dtype)
            return value

        return tuple(widened(value, source) for value, source in zip(args[0], traced, strict=True))


def _narrowed(gm: GraphModule, lacking: dict[torch.dtype, torch.dtype]) -> GraphModule:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    inputs = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    with torch.utils._python_dispatch._disable_current_modes():
        fakes = [_on_cpu(mode, v) if isinstance(v, torch.Tensor) else v for v in inputs]
        with mode, preserve_node_meta():
            narrow: GraphModule = make_fx(_Narrowing(gm, lacking).run, tracing_mode="real")(*fakes)
    for node in narrow.graph.nodes:
        touched = [*_tensors(node), *(t for n in node.all_input_nodes for t in _tensors(n))]
        if node.op == "call_function" and any(t.dtype in lacking for t in touched):
            node.meta[HOST] = "conversion from or to a type that the target lacks"
    return narrow


def _on_cpu(mode: FakeTensorMode, value: torch.Tensor) -> torch.Tensor:
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
