"""Symbolic graphs as JSON: what comes back computes and reports the same; what has no description is refused."""

from __future__ import annotations

import json
import math
import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.stored_fx import MAX_CONSTANT, decode_tensor, describe, encode_tensor, rebuild

aten = torch.ops.aten


def sample() -> GraphModule:
    root = torch.nn.Module()
    root.register_buffer("held", torch.tensor([1.0, float("nan"), float("-inf")]))
    graph = Graph()
    x = graph.placeholder("x")
    rows = graph.call_function(aten.sym_size.int, (x, 0))
    held = graph.get_attr("held")
    half = graph.call_function(math.ceil, (graph.call_function(operator.truediv, (rows, 2)),))
    bound = graph.call_function(torch.sym_max, (half, 1))
    cut = graph.call_function(aten.slice.Tensor, (x, 0, 0, bound))
    cut.meta["stack_trace"] = '  File "/home/user/model.py", line 12, in forward\n    return x[: n // 2]\n'
    cut.meta["nn_module_stack"] = {"block": ("L['self'].layers.3", torch.nn.Linear)}
    parts = graph.call_function(aten.split.Tensor, (cut, 1))
    first = graph.call_function(operator.getitem, (parts, 0))
    total = graph.call_function(aten.mul.Tensor, (first, held))
    filled = graph.call_function(aten.full.default, ([rows, 2], float("inf")), {"dtype": torch.bfloat16, "device": torch.device("cpu")})
    graph.output((total, filled, rows, None))
    return GraphModule(root, graph)


@pytest.mark.parametrize("rows", [1, 5])
def test_the_rebuilt_graph_computes_the_same(rows: int) -> None:
    gm = sample()
    again = rebuild(json.loads(json.dumps(describe(gm))))
    x = torch.arange(rows * 3.0).reshape(rows, 3)
    torch.testing.assert_close(list(again(x)), list(gm(x)), rtol=0, atol=0, equal_nan=True)
    assert [node.name for node in again.graph.nodes] == [node.name for node in gm.graph.nodes]
    assert describe(again) == describe(gm)


def test_the_users_line_stays_known() -> None:
    gm = sample()
    again = rebuild(describe(gm))
    sources = [[source_of(node) for node in graph.graph.nodes] for graph in (gm, again)]
    assert sources[0] == sources[1]
    (where,) = filter(None, sources[1])
    assert (where.file, where.line, where.module, where.code) == ("/home/user/model.py", 12, "layers.3", "return x[: n // 2]")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor([True, False]),
        torch.tensor(0.1, dtype=torch.bfloat16),
        torch.tensor([1 + 2j, -0.0]),
        torch.empty(0, 4),
        torch.tensor([1 + 2j]).conj(),
        torch.randn(3, requires_grad=True),
    ],
)
def test_constants_bit_for_bit(tensor: torch.Tensor) -> None:
    again = decode_tensor(json.loads(json.dumps(encode_tensor(tensor))))
    assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(again, tensor.detach()) and not again.requires_grad


@pytest.mark.parametrize(
    "value",
    [torch.zeros(MAX_CONSTANT + 1, dtype=torch.uint8), torch.zeros(3, device="meta"), torch.eye(3).to_sparse(), torch.nn.ReLU(), [1]],
)
def test_other_constants_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        encode_tensor(value)


def test_calls_of_the_users_and_modules_are_refused() -> None:
    for target in (lambda x: x, torch.ops.higher_order.cond):
        graph = Graph()
        graph.output((graph.call_function(target, (graph.placeholder("x"),)),))
        with pytest.raises(ValueError, match="cannot be stored"):
            describe(GraphModule(torch.nn.Module(), graph))
    graph = Graph()
    graph.output((graph.call_module("inner", (graph.placeholder("x"),)),))
    with pytest.raises(ValueError, match="cannot be stored"):
        describe(GraphModule({"inner": torch.nn.ReLU()}, graph))


def test_an_op_that_this_process_lacks_is_refused() -> None:
    records = describe(sample())
    records[-2]["target"] = "absent::op.default"
    with pytest.raises(ValueError, match="not registered"):
        rebuild(records)
