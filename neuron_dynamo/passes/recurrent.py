"""Multi-layer recurrent calls in Dynamo's graph, opened into one call a layer before AOTAutograd traces them.

PyTorch's own trace of torch.lstm, gru, rnn_tanh and rnn_relu never applies the dropout between layers, where eager does; and it
unrolls an LSTM over time where its input needs gradients, where one op a layer (aten.mkldnn_rnn_layer) has a gradient of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten

_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_LSTM = 2
"""ideep::rnn_kind::LSTM."""


def open_recurrent(gm: GraphModule) -> None:
    """Rewrite, in place, the calls that PyTorch would trace wrongly or at full length. Calls on packed sequences stay."""
    changed = False
    for node in list(gm.graph.nodes):
        if not _is_recurrent(node):
            continue
        dropout_is_lost = node.args[6] and _dropout(node) > 0 and node.args[4] > 1
        whole = _has_layer_op(gm, node)
        if dropout_is_lost or whole:
            _open(gm, node, whole)
            changed = True
    if changed:
        gm.graph.lint()
        gm.recompile()


def _is_recurrent(node: Node) -> bool:
    """Whether the node is such a call on a padded sequence, whose results are taken apart as the modules of torch.nn do."""
    if node.op != "call_function" or node.target not in _RECURRENT or len(node.args) != 9 or not isinstance(node.args[2], (list, tuple)):
        return False
    return all(user.target is operator.getitem for user in node.users)


def _dropout(node: Node) -> float:
    """The call's dropout. With dynamic=True Dynamo makes it an input of the graph; its value is then guarded on."""
    given: Any = node.args[5]
    return float(given.meta["example_value"] if isinstance(given, Node) else given)


def _has_layer_op(gm: GraphModule, node: Node) -> bool:
    """Whether the call is an LSTM that may need gradients and that aten.mkldnn_rnn_layer computes with eager's dtypes."""
    if node.target is not torch.lstm or not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if any(n.op == "call_function" and "autocast" in getattr(n.target, "__name__", "") for n in gm.graph.nodes):
        return False
    args: tuple[Any, ...] = node.args
    values = [n.meta.get("example_value") for n in (args[0], *args[1], *args[2])]
    if not all(isinstance(v, torch.Tensor) and v.dtype == torch.float32 and v.device.type == "cpu" for v in values):
        return False
    x, h, c = values[:3]
    return bool(x.ndim == 3 and h.shape[-1] == c.shape[-1])


def _open(gm: GraphModule, node: Node, whole: bool) -> None:
    args: tuple[Any, ...] = node.args
    x, hx, parameters, has_biases, layers, _, train, bidirectional, batch_first = args
    dropout = _dropout(node)
    per_layer, directions = len(parameters) // layers, 2 if bidirectional else 1
    states: Sequence[Any] = hx if isinstance(hx, (list, tuple)) else (hx,)
    rnn: Any = node.target

    def call(function: Any, *args: Any) -> Node:
        made = gm.graph.call_function(function, args)
        made.meta.update({key: node.meta[key] for key in ("stack_trace", "nn_module_stack", "source_fn_stack") if key in node.meta})
        return made

    def layer(x: Any, start: list[Node], weights: Sequence[Any]) -> list[Node]:
        """(output, states at the end) of one layer, in both directions."""
        if not whole:
            given = tuple(start) if rnn is torch.lstm else start[0]
            results = call(rnn, x, given, list(weights), has_biases, 1, 0.0, train, bidirectional, False)
            return [call(operator.getitem, results, n) for n in range(1 + len(start))]
        ways = []
        for way in range(directions):
            w = weights[way * per_layer // directions : (way + 1) * per_layer // directions]
            biases = w[2:] if has_biases else [call(torch.zeros_like, v) for v in w]
            begin = [call(torch.narrow, s, 0, way, 1) for s in start]
            results = call(
                *(aten.mkldnn_rnn_layer.default, x, *w[:2], *biases, *begin),
                *(way == 1, [], _LSTM, hidden_size, 1, has_biases, False, False, train),
            )
            ways.append([call(operator.getitem, results, n) for n in range(3)])
        if directions == 1:
            return ways[0]
        return [call(torch.cat, list(parts), dim) for parts, dim in zip(zip(*ways, strict=True), (-1, 0, 0), strict=True)]

    hidden_size = parameters[1].meta["example_value"].shape[-1] if whole else 0
    with gm.graph.inserting_before(node):
        output: Any = call(torch.transpose, x, 0, 1) if batch_first else x
        ends: list[list[Node]] = []
        for n in range(layers):
            start = [call(torch.narrow, s, 0, n * directions, directions) for s in states]
            output, *end = layer(output, start, parameters[n * per_layer : (n + 1) * per_layer])
            ends.append(end)
            if train and n < layers - 1 and dropout != 0:
                output = call(torch.dropout, output, dropout, True)
        output = call(torch.transpose, output, 0, 1) if batch_first else output
        results = [output, *(call(torch.cat, list(parts), 0) for parts in zip(*ends, strict=True))]
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
