"""While loops that carry Python integers: the integers become 0-d tensors, so that the loop is one of tensors alone, and native.

Only where every use of them in the loop means the same for a 0-d int64 tensor; else the loop stays as it is, and runs on the host.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from neuron_dynamo.passes.expand import attach, mode_of, value_of

aten = torch.ops.aten

_ON_NUMBERS = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg),
        *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
    }
)
_ON_TENSORS = {
    aten.add.Tensor: aten.add.Tensor,
    aten.sub.Tensor: aten.sub.Tensor,
    aten.mul.Tensor: aten.mul.Tensor,
    **{getattr(aten, name).Scalar: getattr(aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
"""Op with a number for an operand -> the same with a 0-d tensor."""


class _OtherUse(Exception):
    """A number is used where a tensor would not do."""


def tensor_counters(gm: GraphModule) -> None:
    """Rewrite, in place, the while loops of a graph that AOTAutograd made."""
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.higher_order.while_loop and "unbacked_bindings" in node.meta:
            _rewrite(gm, node)


def _rewrite(gm: GraphModule, node: Node) -> None:
    arguments: Any = node.args
    condition, body, carried, additional = arguments
    numbers = [i for i, operand in enumerate(carried) if isinstance(_value(operand), (int, torch.SymInt))]
    users = all(user.target is operator.getitem for user in node.users)
    if not users or any(isinstance(_value(carried[i]), bool) for i in numbers) or len(node.meta["unbacked_bindings"]) != len(numbers):
        return
    mode = mode_of(gm)
    try:
        graphs = [_over_tensors(value_of(graph), numbers, returned, mode) for graph, returned in ((condition, []), (body, numbers))]
    except _OtherUse:
        return
    with gm.graph.inserting_before(node), mode:

        def call(target: Any, *args: Any, **kwargs: Any) -> Node:
            made = gm.graph.call_function(target, args, kwargs)
            made.meta = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack", "fwd_nn_module_stack")}
            return made

        operands = list(carried)
        for i in numbers:
            operands[i] = call(aten.scalar_tensor.default, carried[i], dtype=torch.int64)
            operands[i].meta["val"] = torch.empty((), dtype=torch.int64)
        modules = [gm.graph.create_node("get_attr", attach(gm, graph)) for graph in graphs]
        loop = call(node.target, *modules, tuple(operands), additional)
        loop.meta["val"] = tuple(torch.empty((), dtype=torch.int64) if i in numbers else v for i, v in enumerate(node.meta["val"]))
        for user in list(node.users):
            index: Any = user.args[1]
            taken = call(operator.getitem, loop, index)
            taken.meta["val"] = loop.meta["val"][index]
            if index in numbers:
                taken = call(aten._local_scalar_dense.default, taken)
                taken.meta["val"] = user.meta["val"]
                taken.meta["unbacked_bindings"] = node.meta["unbacked_bindings"]
            user.replace_all_uses_with(taken)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()


def _value(operand: Any) -> Any:
    return value_of(operand) if isinstance(operand, Node) else operand


def _over_tensors(subgraph: GraphModule, numbers: Sequence[int], returned: Sequence[int], mode: Any) -> GraphModule:
    """`subgraph` for 0-d int64 tensors in the place of the `numbers` among its operands, and of the `returned` ones of its results.

    Raises _OtherUse.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    values: dict[Node, Any] = {}
    count = 0
    for node in subgraph.graph.nodes:
        touched = any(source in values for source in node.all_input_nodes)
        if node.op == "output":
            single = not isinstance(node.args[0], (tuple, list))
            results = [node.args[0]] if single else list(node.args[0])
            if any(not isinstance(results[i], Node) or results[i] not in values for i in returned):
                raise _OtherUse
            graph.output(torch.fx.node.map_arg(node.args[0], copies.__getitem__))
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "placeholder":
            if count in numbers:
                with mode:
                    values[node] = torch.empty((), dtype=torch.int64)
            count += 1
        elif touched:
            if node.target not in _ON_NUMBERS and node.target not in _ON_TENSORS:
                raise _OtherUse
            copies[node].target = _ON_TENSORS.get(node.target, node.target)
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n] if n in values else value_of(n))
            with mode:
                made = copies[node].target(*args, **kwargs)  # type: ignore[operator]
            before = node.meta["val"]
            if not isinstance(before, torch.Tensor):
                values[node] = made
            elif made.dtype != before.dtype:
                raise _OtherUse
    return GraphModule(subgraph, graph)
