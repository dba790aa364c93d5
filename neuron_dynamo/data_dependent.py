"""Graphs with sizes or numbers that depend on data (nonzero, unique, item, boolean masks): cut into stages at the ops that make them.

No target's programs have dynamic shapes: such an op runs in a padded form (passes/padded.py), or on the host, and is reported so. What
comes after it is compiled for the sizes that it made, once a size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from neuron_dynamo.padded_stage import StageCompiler, op_stage
from neuron_dynamo.passes.partition import mutates
from neuron_dynamo.stored_fx import describe

Compiled = Callable[[list[Any]], list[Any]]


def is_data_dependent(gm: GraphModule) -> bool:
    """Whether an op of the graph makes a size or number out of data."""
    return any(_makes_sizes(node) for node in gm.graph.nodes)


_MAKERS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def _makes_sizes(node: Node) -> bool:
    """Whether the op looks into data for a size or number. A slice by numbers out of data does not: they are known when it is compiled."""
    if node.op != "call_function":
        return False
    if node.target is torch.ops.aten._local_scalar_dense.default:
        return True
    if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten" and set(_MAKERS).isdisjoint(node.target.tags):
        return False
    return bool(node.meta.get("unbacked_bindings"))


def _taken_from(node: Node) -> Node | None:
    """The op that makes sizes and of whose several results the node is one."""
    source = node.args[0] if node.target is operator.getitem else None
    return source if isinstance(source, Node) and _makes_sizes(source) else None


def _of_new_size(node: Node) -> bool:
    return _makes_sizes(node) or _taken_from(node) is not None


def _taking(indices: list[Any]) -> Compiled:
    return lambda values: [values[0][index] for index in indices]


@dataclass(frozen=True)
class Stage:
    """What runs between two cuts: takes and gives values by the node that made them. Either a compiled graph or one op that makes sizes."""

    takes: tuple[Node, ...]
    gives: tuple[Node, ...]
    run: Compiled


class StagedGraph:
    """Boxed callable over the stages of a graph, in order."""

    def __init__(
        self,
        gm: GraphModule,
        compile_any: Callable[[GraphModule], Compiled],
        compiler: StageCompiler,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._boxed_call = True
        self._gm, self._about = gm, about
        self._inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
        (output,) = (n for n in gm.graph.nodes if n.op == "output")
        self._output = output.args[0]
        self._stages = _stages(gm, compile_any, compiler)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        values: dict[Node, Any] = dict(zip(self._inputs, inputs, strict=True))
        inputs.clear()
        for stage in self._stages:
            results = stage.run([values[node] for node in stage.takes])
            values.update(zip(stage.gives, results, strict=True))
        return list(torch.fx.node.map_arg(self._output, values.__getitem__))

    def to_state(self) -> dict[str, Any]:
        """JSON-able description of the whole graph. Raises NotRestorable where it has none."""
        return describe_symbolic(self._gm, self._about, staged=True)


def describe_symbolic(gm: GraphModule, about: Mapping[str, Any] | None, *, staged: bool) -> dict[str, Any]:
    """What `dynamic.restore_any` reads. Raises NotRestorable."""
    from neuron_dynamo.aot_cache import NotRestorable

    if about is None:
        raise NotRestorable("a stage of a graph is stored with the graph")
    try:
        return {"nodes": describe(gm), "staged": staged, "about": dict(about)}
    except ValueError as error:
        raise NotRestorable(str(error)) from error


def _stages(gm: GraphModule, compile_any: Callable[[GraphModule], Compiled], compiler: StageCompiler) -> list[Stage]:
    levels = _levels(gm)
    last = max(levels.values(), default=0)
    stages: list[Stage] = []
    for level in range(last + 1):
        members = [n for n in gm.graph.nodes if levels.get(n) == level]
        compiled = [n for n in members if not _of_new_size(n)]
        if any(n.op == "call_function" for n in compiled):
            stages.append(_compiled_stage(gm, compiled, compile_any))
        for node in (n for n in members if _makes_sizes(n)):
            takes, run = op_stage(gm, node, compiler)
            stages.append(Stage(takes, (node,), run))
            if taken := [n for n in members if _taken_from(n) is node]:
                stages.append(Stage((node,), tuple(taken), _taking([n.args[1] for n in taken])))
    return stages


def _levels(gm: GraphModule) -> dict[Node, int]:
    """The stage of each node: one more than that of any op it depends on that makes sizes. Writes into inputs come after every read."""
    levels: dict[Node, int] = {}
    for node in gm.graph.nodes:
        if (maker := _taken_from(node)) is not None:
            levels[node] = levels[maker]
        elif node.op == "call_function":
            levels[node] = max((levels[n] + _of_new_size(n) for n in node.all_input_nodes if n in levels), default=0)
    last = max(levels.values(), default=0)
    writes = [node for node in levels if mutates(node)]
    if any(_makes_sizes(node) and level == last for node, level in levels.items()):
        last += 1
    levels.update((node, last) for node in writes)
    return levels


def _compiled_stage(gm: GraphModule, members: list[Node], compile_any: Callable[[GraphModule], Compiled]) -> Stage:
    inside = set(members)
    sources = dict.fromkeys(n for node in members for n in node.all_input_nodes if n not in inside)
    takes = [n for n in sources if n.op != "get_attr"]
    gives = [n for n in members if n.op == "call_function" and not mutates(n) and any(user not in inside for user in n.users)]
    graph = Graph()
    copies: dict[Node, Node] = {}
    for number, node in enumerate(takes):
        copies[node] = graph.placeholder(f"arg{number}_1")
        copies[node].meta = dict(node.meta)
    for node in (*(n for n in sources if n.op == "get_attr"), *members):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in gives))
    stage = GraphModule(gm, graph)
    stage.graph.lint()
    return Stage(tuple(takes), tuple(gives), compile_any(stage))
