"""Expand: put the trace of a function in the place of one node of a graph of static shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from neuron_dynamo.lowering import registry
from neuron_dynamo.passes.table import LazyTable

Table = dict[Any, Callable[..., Any]]


class NotStaticError(Exception):
    """A node cannot be traced into plain ops; the text says why."""


class MismatchError(Exception):
    """What a function returns differs in number, shape or dtype from the node that it should stand for; the text says how."""


def expand(gm: GraphModule, node: Node, function: Callable[..., Any], table: Table | None = None) -> None:
    """Replace `node` by what `function(*args, **kwargs)` does, in place. Sub-graphs among the arguments are passed as modules.

    Writes within `function` are functionalised. `table` decomposes further ops at first. Raises NotStaticError where arguments have no
    static shape, MismatchError where the results do not fit node.meta["val"], and whatever `function` raises.
    """
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    inputs = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Node) and isinstance(value_of(leaf), torch.Tensor)))

    def flat(*tensors: torch.Tensor) -> list[Any]:
        given = dict(zip(inputs, tensors, strict=True))
        filled = [given[leaf] if leaf in given else value_of(leaf) if isinstance(leaf, Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return pytree.tree_leaves(function(*args, **kwargs))

    traced = trace(flat, [value_of(n) for n in inputs], mode_of(gm), table)
    expected, structure = pytree.tree_flatten(node.meta["val"])
    (output,) = (n for n in traced.graph.nodes if n.op == "output")
    _compare(output.args[0], expected)
    _separate(traced)
    results = _splice(gm, node, traced, inputs)
    replace(node, pytree.tree_unflatten(results, structure))
    gm.graph.erase_node(node)


def value_of(node: Node) -> Any:
    """The traced value of a node: its meta's, or for an attribute of the module that has none, the attribute."""
    if "val" in node.meta or node.op != "get_attr":
        return node.meta.get("val")
    return operator.attrgetter(str(node.target))(node.graph.owning_module)


def mode_of(gm: GraphModule) -> FakeTensorMode:
    """The mode of the graph's fake tensors, or a new one."""
    for node in gm.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, FakeTensor):
                return value.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)


def trace(function: Callable[..., Any], tensors: Sequence[torch.Tensor], mode: FakeTensorMode, table: Table | None = None) -> GraphModule:
    """`function` over tensors like `tensors`, functionalised and decomposed, with fake tensors in node.meta["val"]."""
    if not all(isinstance(n, int) for t in tensors for n in (*t.shape, *t.stride())):
        raise NotStaticError("a shape that depends on data")
    from torch._dynamo.convert_frame import compile_lock

    # A tracer's state is the process's, and a graph of symbolic shape is compiled when it is called, by any thread.
    with compile_lock, _disable_current_modes(), torch.no_grad(), preserve_node_meta():
        with mode:
            given = [_like(t) for t in tensors]
            plain = make_fx(function, decomposition_table=table or {}, tracing_mode="real", _allow_non_fake_inputs=True)(*given)
            functional = torch.func.functionalize(torch.fx.Interpreter(plain).run, remove="mutations")
            gm: GraphModule = make_fx(functional, decomposition_table=LazyTable(), tracing_mode="real", _allow_non_fake_inputs=True)(*given)
        gm.graph.eliminate_dead_code()
    _views_for_copies(gm)
    return gm


def _views_for_copies(gm: GraphModule) -> None:
    """Nested sub-graphs are functionalised with copies in the place of views, which need no lowering of their own."""
    for node in gm.graph.nodes:
        name = node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""
        if name.startswith("aten::") and name.endswith("_copy") and registry.find(node.target) is None:
            packet = getattr(torch.ops.aten, name.removeprefix("aten::").removesuffix("_copy"), None)
            view = getattr(packet, node.target._overloadname, None)
            if view is not None and registry.find(view) is not None:
                node.target = view


def _like(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu")
    return made.requires_grad_(tensor.requires_grad)


def _compare(results: Sequence[Any], expected: Sequence[Any]) -> None:
    if len(results) != len(expected):
        raise MismatchError(f"{len(results)} results instead of {len(expected)}")
    for index, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        got = result.meta["val"] if isinstance(result, Node) else result
        if _kind(got) != _kind(wanted):
            raise MismatchError(f"result {index} is {_kind(got)}, PyTorch says {_kind(wanted)}")


def _separate(traced: GraphModule) -> None:
    """Copy the results of a trace that are, or are views of, its inputs: those of the op that it stands for are new."""
    inputs = {_storage(n.meta["val"]) for n in traced.graph.nodes if n.op == "placeholder"}
    (output,) = (n for n in traced.graph.nodes if n.op == "output")

    def separate(node: Node) -> Node:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or _storage(value) not in inputs:
            return node
        with traced.graph.inserting_before(output):
            copy = traced.graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = dict(node.meta)
        return copy

    output.args = (torch.fx.node.map_arg(output.args[0], separate),)


def _storage(tensor: torch.Tensor) -> Any:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _kind(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _splice(gm: GraphModule, node: Node, traced: GraphModule, inputs: Sequence[Node]) -> list[Any]:
    """Copy the nodes of `traced` before `node`; returns its results as nodes of gm."""
    copies: dict[Node, Node] = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), inputs, strict=True))
    results: list[Any] = []
    with gm.graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "output":
                results = list(torch.fx.node.map_arg(inner.args[0], copies.__getitem__))
            elif inner.op == "get_attr":
                name = attach(gm, operator.attrgetter(str(inner.target))(traced))
                copies[inner] = gm.graph.create_node("get_attr", name)
                copies[inner].meta = dict(inner.meta)
            elif inner.op != "placeholder":
                copies[inner] = gm.graph.node_copy(inner, copies.__getitem__)
                for key in ("stack_trace", "nn_module_stack", "fwd_nn_module_stack"):
                    if key in node.meta:
                        copies[inner].meta.setdefault(key, node.meta[key])
    return results


def attach(gm: GraphModule, value: Any) -> str:
    """Make `value` an attribute of gm under a name that is new there; returns the name."""
    number = 0
    while hasattr(gm, f"_expanded_{number}"):
        number += 1
    setattr(gm, f"_expanded_{number}", value)
    return f"_expanded_{number}"


def replace(node: Node, value: Any) -> None:
    """Let the users of `node`, and of what they take from it, use `value`: a node, a constant, or a structure of those."""
    if isinstance(value, Node):
        node.replace_all_uses_with(value)
        return
    for user in list(node.users):
        if isinstance(value, (tuple, list)) and user.target is operator.getitem:
            replace(user, value[user.args[1]])  # type: ignore[index]
            user.graph.erase_node(user)
        else:
            user.args, user.kwargs = torch.fx.node.map_arg((user.args, user.kwargs), lambda n: value if n is node else n)
