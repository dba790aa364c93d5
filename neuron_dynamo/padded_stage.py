"""A stage of one op whose result has a size that depends on data, run by a native program where the op has a padded form."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node

from neuron_dynamo.passes.expand import trace
from neuron_dynamo.passes.padded import UNDEFINED, Padded, padded_form

Compiled = Callable[[list[Any]], list[Any]]
WHY = "what it makes has a size, or is a number, that depends on data"


@dataclass(frozen=True)
class StageCompiler:
    """How the stages of a graph come about: `compile_static` a graph of static shapes; `on_host` hears of each op that eager PyTorch
    runs, and why; `why_not_native` tells why a node of static shapes has no lowering for the target."""

    compile_static: Callable[[GraphModule], Compiled]
    on_host: Callable[[Node, str], None]
    why_not_native: Callable[[Node], str | None]


def op_stage(gm: GraphModule, node: Node, compiler: StageCompiler) -> tuple[tuple[Node, ...], Compiled]:
    """(nodes whose values it takes, callable that gives the value of `node` alone)."""
    form = padded_form(node.target)
    if form is None:
        compiler.on_host(node, WHY)
        stage = _Eager(gm, node)
        return stage.takes, stage
    padded = _PaddedStage(gm, node, form, compiler)
    padded.compile_ahead()
    return padded.takes, padded


class _Eager:
    """Calls the op."""

    def __init__(self, gm: GraphModule, node: Node) -> None:
        self._node = node
        self.takes = tuple(n for n in node.all_input_nodes if n.op != "get_attr")
        self._attributes = {n: operator.attrgetter(str(n.target))(gm) for n in node.all_input_nodes if n.op == "get_attr"}

    def arguments(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = {**self._attributes, **dict(zip(self.takes, values, strict=True))}
        args, kwargs = torch.fx.node.map_aggregate((self._node.args, self._node.kwargs), lambda v: given[v] if isinstance(v, Node) else v)
        return tuple(args), dict(kwargs)

    def __call__(self, values: list[Any]) -> list[Any]:
        args, kwargs = self.arguments(values)
        return [self._node.target(*args, **kwargs)]  # type: ignore[operator]


class _PaddedStage(_Eager):
    """Runs the padded form, compiled once for each combination of sizes, and cuts its results; else calls the op."""

    def __init__(self, gm: GraphModule, node: Node, form: Padded, compiler: StageCompiler) -> None:
        super().__init__(gm, node)
        self._form, self._compiler = form, compiler
        self._compiled: dict[tuple[Any, ...], Compiled | None] = {}
        self._lock = threading.Lock()

    def compile_ahead(self) -> None:
        """Compile before any call, where the sizes are known; those of a graph that was read back are not."""
        values = [node.meta.get("val") for node in self.takes]
        sizes = [n for v in values if isinstance(v, torch.Tensor) for n in (*v.shape, *v.stride())]
        if all(isinstance(v, torch.Tensor) for v in values) and all(isinstance(n, int) for n in sizes):
            self._program(values)

    def __call__(self, values: list[Any]) -> list[Any]:
        compiled = self._program(values)
        if compiled is None:
            return super().__call__(values)
        args, kwargs = self.arguments(values)
        *made, size = compiled(_tensors(args, kwargs))
        # An inspection has no data: there the op says so.
        if isinstance(size, FakeTensor) or (true_size := int(size)) == UNDEFINED:
            return super().__call__(values)
        return [self._form.finish(true_size, made, *args, **kwargs)]

    def _program(self, values: Sequence[Any]) -> Compiled | None:
        key = tuple([(tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else v for v in values])
        if key not in self._compiled:
            with self._lock:
                if key not in self._compiled:
                    self._compiled[key] = self._compile(values)
        return self._compiled[key]

    def _compile(self, values: Sequence[Any]) -> Compiled | None:
        args, kwargs = self.arguments(values)
        reason = self._form.why_not(*args, **kwargs)
        if reason is None:
            gm = self._traced(args, kwargs)
            reasons = (self._compiler.why_not_native(n) for n in gm.graph.nodes if n.op == "call_function")
            reason = next(filter(None, reasons), None)
            if reason is None:
                return self._compiler.compile_static(gm)
        self._compiler.on_host(self._node, f"{WHY}; no padded form: {reason}")
        return None

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GraphModule:
        def form(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = iter(tensors)
            filled_args, filled_kwargs = _mapped(args, kwargs, lambda t: next(given))
            return self._form.compute(*filled_args, **filled_kwargs)

        gm = trace(form, _tensors(args, kwargs), FakeTensorMode(allow_non_fake_inputs=True))
        for node in gm.graph.nodes:
            if node.op == "call_function":
                node.meta.update({name: self._node.meta[name] for name in _SOURCE if name in self._node.meta})
        return gm


_SOURCE = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack")


def _mapped(args: Any, kwargs: Any, function: Callable[[torch.Tensor], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return torch.fx.node.map_aggregate((args, kwargs), lambda v: function(v) if isinstance(v, torch.Tensor) else v)


def _tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _mapped(args, kwargs, found.append)
    return found
