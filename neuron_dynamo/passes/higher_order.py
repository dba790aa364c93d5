"""Higher-order ops of a graph of static shapes: expanded into plain ops, or their sub-graphs made ready to become regions.

Straight-line ones (flex_attention, invoke_subgraph, associative_scan ...) are replaced by the trace of their PyTorch definition.
Control flow (cond, while_loop, scan, map) stays one node, whose meta[REGIONS] holds its sub-graphs as traced for lowering. The
sub-graphs among its arguments are left as they are: the host runs those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node

from neuron_dynamo.lowering.regions import REGIONS, WHY_WHOLE
from neuron_dynamo.passes.custom_ops import decomposition_of, expand_custom
from neuron_dynamo.passes.expand import expand, mode_of, trace, value_of


def higher_order(gm: GraphModule) -> None:
    """Rewrite `gm` in place, sub-graphs included. Ops for which the user registered a decomposition are expanded as well."""
    changed = False
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            continue
        if decomposition_of(node) is not None:
            expand_custom(gm, node)
            changed = True
        elif isinstance(node.target, HigherOrderOperator):
            changed = _rewrite(gm, node) or changed
    if changed:
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
        gm.recompile()


def _rewrite(gm: GraphModule, node: Node) -> bool:
    try:
        if (definition := _definition(node)) is not None:
            expand(gm, node, definition, _inner_decompositions())
            return True
        if node.target in _CONTROL_FLOW:
            _own_subgraphs(gm, node)
            node.meta[REGIONS] = dict(_regions(gm, node))
    except Exception as error:  # whatever stands in the way of the trace, the host can run the op as it is
        node.meta[WHY_WHOLE] = f"it cannot be traced into plain ops ({type(error).__name__}: {str(error).strip().splitlines()[0][:200]})"
    return False


# Straight-line ops


def _definition(node: Node) -> Callable[..., Any] | None:
    """The function over PyTorch ops that the node's op stands for, or None."""
    name = str(node.target) if isinstance(node.target, HigherOrderOperator) else ""
    if name == "cond" and isinstance(node.args[0], (bool, int)):
        return lambda chosen, on_true, on_false, operands: (on_true if chosen else on_false)(*operands)
    return _DEFINITIONS.get(name)


def _call(subgraph: Callable[..., Any], *operands: Any, **settings: Any) -> Any:
    return subgraph(*operands)


def _call_named(subgraph: Callable[..., Any], identifier: str, *operands: Any) -> Any:
    return subgraph(*operands)


def _call_with(subgraph: Callable[..., Any], operands: Sequence[Any], *settings: Any, **named: Any) -> Any:
    return subgraph(*operands)


def _associative_scan(combine: Callable[..., Any], xs: Sequence[torch.Tensor], additional: Sequence[Any]) -> Any:
    from torch._higher_order_ops.associative_scan import generic_associative_scan

    return generic_associative_scan(combine, list(xs), additional_inputs=tuple(additional))  # type: ignore[no-untyped-call]


def _out_dtype(op: Any, dtype: torch.dtype, *args: Any) -> Any:
    from torch._higher_order_ops.out_dtype import out_dtype_dense

    return out_dtype_dense(op, dtype, *args)


def _flex_attention(*args: Any) -> Any:
    from torch._higher_order_ops.flex_attention import sdpa_dense

    out, logsumexp, largest = sdpa_dense(*args)
    return out, logsumexp.float(), largest.float()  # so PyTorch traces them, for float64 as well


def _flex_attention_backward(*args: Any) -> Any:
    from torch._higher_order_ops.flex_attention import math_attention, sdpa_dense_backward

    query, key, value, out, logsumexp, grad_out, grad_logsumexp, forward, joint, mask, scale, options, captured, masked = args
    if query.dtype == torch.float64:  # the one that was saved is float32
        _, logsumexp, _ = math_attention(query, key, value, forward, mask, scale, options, captured, masked)
    (output,) = (n for n in joint.graph.nodes if n.op == "output")
    wanted = [grad is not None for grad in output.args[0][5:]]
    captured = tuple(b.detach().requires_grad_() if w else b for b, w in zip(captured, wanted, strict=True))
    saved = (query, key, value, out, logsumexp, grad_out, grad_logsumexp)
    *grads, captured_grads = sdpa_dense_backward(*saved, forward, joint, mask, scale, options, captured, masked)
    # Each captured tensor has a gradient among the node's results, even where none is taken.
    filled = [
        torch.zeros_like(b) if g is None and isinstance(b, torch.Tensor) else g for b, g in zip(captured, captured_grads, strict=True)
    ]
    return *grads, tuple(filled)


@functools.cache
def _inner_decompositions() -> dict[Any, Callable[..., Any]]:
    """Of ops that exist only within the definitions."""
    from torch._dynamo import _trace_wrapped_higher_order_op as flex

    def zeros_and_scatter(shape: Sequence[int], indices: Sequence[torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(shape).index_put(list(indices), values, accumulate=True)

    return {flex.zeros_and_scatter._opoverload: zeros_and_scatter}


_DEFINITIONS: dict[str, Callable[..., Any]] = {
    "associative_scan": _associative_scan,
    "flex_attention": _flex_attention,
    "flex_attention_backward": _flex_attention_backward,
    "foreach_map": _call,
    "hints_wrapper": _call_with,
    "invoke_quant": _call,
    "invoke_quant_packed": _call,
    "invoke_subgraph": _call_named,
    "out_dtype": _out_dtype,
    "strict_mode": _call_with,
    "wrap": _call,
}
"""By the name of the op: some exist only once their module has been imported."""


# Control flow


def _cond(predicate: Any, on_true: Node, on_false: Node, operands: Sequence[Any]) -> Iterator[tuple[Node, list[Any]]]:
    yield on_true, list(operands)
    yield on_false, list(operands)


def _while_loop(
    condition: Node, body: Node, carried: Sequence[Any], additional: Sequence[Any], *_: Any
) -> Iterator[tuple[Node, list[Any]]]:
    yield condition, [*carried, *additional]
    yield body, [*carried, *additional]


def _scan(combine: Node, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any]) -> Iterator[tuple[Node, list[Any]]]:
    yield combine, [*init, *map(_Row, xs), *additional]


def _map(body: Node, xs: Sequence[Any], additional: Sequence[Any]) -> Iterator[tuple[Node, list[Any]]]:
    yield body, [*map(_Row, xs), *additional]


_higher = torch.ops.higher_order
_CONTROL_FLOW: dict[Any, Callable[..., Iterator[tuple[Node, list[Any]]]]] = {
    _higher.cond: _cond,
    _higher.while_loop: _while_loop,
    _higher.scan: _scan,
    _higher.map_impl: _map,
}
"""Control-flow op -> its sub-graphs, each with its arguments, from the op's own arguments."""


class _Row:
    """Stands for one row of a stacked operand."""

    def __init__(self, stacked: Node) -> None:
        self.stacked = stacked


def _own_subgraphs(gm: GraphModule, node: Node) -> None:
    """Give the node attributes that no other node reads: only tensors cross from one program to another."""
    for source in node.all_input_nodes:
        if source.op == "get_attr" and len(source.users) > 1:
            with gm.graph.inserting_before(node):
                node.replace_input_with(source, gm.graph.node_copy(source))


def _regions(gm: GraphModule, node: Node) -> Iterator[tuple[str, GraphModule]]:
    mode = mode_of(gm)
    for subgraph, operands in _CONTROL_FLOW[node.target](*node.args, **node.kwargs):
        yield str(subgraph.target), _region(value_of(subgraph), [_value(operand, mode) for operand in operands], mode)


def _value(operand: Any, mode: FakeTensorMode) -> Any:
    if isinstance(operand, _Row):
        stacked = value_of(operand.stacked)
        with torch.utils._python_dispatch._disable_current_modes(), mode:
            return torch.empty_strided(stacked.shape[1:], stacked.stride()[1:], dtype=stacked.dtype)
    return value_of(operand) if isinstance(operand, Node) else operand


def _region(subgraph: GraphModule, operands: list[Any], mode: FakeTensorMode) -> GraphModule:
    """`subgraph` traced over those of its operands that are tensors; the others are its constants."""
    tensors = [v for v in operands if isinstance(v, torch.Tensor)]

    def run(*given: torch.Tensor) -> Any:
        rest = iter(given)
        return Interpreter(subgraph).run(*(next(rest) if isinstance(v, torch.Tensor) else v for v in operands))

    traced = trace(run, tensors, mode)
    higher_order(traced)
    return traced
