"""Graphs with symbolic sizes: specialised per concrete shape at call time, inside one compiled callable.

A new shape costs one lowering, never a Dynamo recompile.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from neuron_dynamo.data_dependent import StagedGraph, describe_symbolic, is_data_dependent
from neuron_dynamo.padded_stage import StageCompiler
from neuron_dynamo.stored_fx import rebuild

Compiled = Callable[[list[Any]], list[Any]]


def compile_any(
    gm: GraphModule,
    compile_static: Callable[[GraphModule, bool], Compiled],
    on_host: Callable[[Node, str], None],
    why_not_native: Callable[[Node], str | None],
    about: Mapping[str, Any] | None = None,
) -> Compiled:
    """`compile_static(gm, False)` where all sizes are concrete, else a callable that does it per shape.

    A graph whose sizes depend on data is cut into stages of which each is compiled so. The flag tells that every output of the given graph
    is to have eager's strides, as between stages. `on_host` hears of each op that eager PyTorch runs between stages, and why;
    `why_not_native` tells why a node of static shapes has no lowering. `about` is JSON-able
    and goes with the graph's description: what the caller needs to make the same functions in another process.
    """
    if is_data_dependent(gm):
        compiler = StageCompiler(lambda static: compile_static(static, True), on_host, why_not_native)
        return StagedGraph(gm, lambda stage: _per_shape(stage, compiler.compile_static), compiler, about)
    if is_symbolic(gm):
        return SpecialisedGraph(gm, lambda static: compile_static(static, False), about)
    return compile_static(gm, False)


def restore_any(
    state: dict[str, Any],
    compile_static: Callable[[GraphModule, bool], Compiled],
    on_host: Callable[[Node, str], None],
    why_not_native: Callable[[Node], str | None],
) -> SpecialisedGraph | StagedGraph:
    """The graph that `to_state` of one of the two described. Raises ValueError where this process lacks an op."""
    gm = rebuild(state["nodes"])
    if not state["staged"]:
        return SpecialisedGraph(gm, lambda static: compile_static(static, False), state["about"])
    # Whether a stage is symbolic is not described: a static one is specialised too, at its first call.
    compiler = StageCompiler(lambda static: compile_static(static, True), on_host, why_not_native)
    return StagedGraph(gm, lambda stage: SpecialisedGraph(stage, compiler.compile_static), compiler, state["about"])


def _per_shape(gm: GraphModule, compile_static: Callable[[GraphModule], Compiled]) -> Compiled:
    return SpecialisedGraph(gm, compile_static) if is_symbolic(gm) else compile_static(gm)


def is_symbolic(gm: GraphModule) -> bool:
    """Whether any value of the graph is a symbolic number or has a symbolic size."""
    return any(_symbolic(node.meta.get("val")) for node in gm.graph.nodes)


def _symbolic(value: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return True
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return isinstance(value, (tuple, list)) and any(map(_symbolic, value))


class SpecialisedGraph:
    """Boxed callable that holds one compiled graph for each combination of input sizes and numbers it has met."""

    def __init__(self, gm: GraphModule, compile_static: Callable[[GraphModule], Compiled], about: Mapping[str, Any] | None = None) -> None:
        self._boxed_call = True
        self._gm, self._compile_static, self._about = gm, compile_static, about
        self._compiled: dict[tuple[Any, ...], Compiled] = {}
        self._lock = threading.Lock()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        key = tuple([tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in inputs])
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key)
                if compiled is None:
                    compiled = self._compiled[key] = self._compile_static(concrete(self._gm, inputs))
        return compiled(inputs)

    def to_state(self) -> dict[str, Any]:
        """JSON-able description of the symbolic graph; its specialisations are in the cache. Raises NotRestorable where it has none."""
        return describe_symbolic(self._gm, self._about, staged=False)


def concrete(gm: GraphModule, inputs: list[Any]) -> GraphModule:
    """`gm` with the sizes of `inputs`: shapes propagated anew, numbers computed and written into the arguments that took them.

    Without a tracer, whose state is the process's: other threads may be calling compiled functions.
    """
    # The symbols are for sub-graphs of higher-order ops, which may make sizes of their own.
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    given = iter(inputs)
    graph = Graph()
    values: dict[Node, Any] = {}
    nodes: dict[Node, Node] = {}

    def argument(node: Node) -> Any:
        return nodes.get(node, values[node])

    with mode:
        for node in gm.graph.nodes:
            if node.op == "output":
                graph.output(torch.fx.node.map_arg(node.args[0], argument))
                continue
            if node.op == "placeholder":
                value = next(given)
                values[node] = mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
            elif node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(gm)
            else:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
            if node.op == "placeholder" or not (values[node] is None or isinstance(values[node], (bool, int, float))):
                copy = graph.node_copy(node, argument)
                copy.meta = {**node.meta, "val": values[node]}
                if isinstance(values[node], (torch.Tensor, tuple, list)) or node.op == "get_attr":
                    nodes[node] = copy
    return GraphModule(gm, graph)
