"""Fusions as the vendor's custom calls: targets, operands and backend_config as its open code has them, on the HLO that is emitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from neuron_dynamo.errors import OptionError
from neuron_dynamo.lowering.hlo import bytecode, emit, schema
from neuron_dynamo.lowering.pipeline import lower
from neuron_dynamo.lowering.program import Program
from neuron_dynamo.options import Options
from neuron_dynamo.passes.decompositions import decomposition_table
from neuron_dynamo.passes.fusion import fuse
from neuron_dynamo.target import get_target
from tests.doubles.hlo_refusals import refusals


def _program(function: Callable[..., Any], *args: torch.Tensor) -> Program:
    graph = make_fx(lambda *a: (function(*a),), decomposition_table=decomposition_table())(*args).graph
    fuse(graph)
    return lower(graph, get_target("trn2"))


def _calls(function: Callable[..., Any], *args: torch.Tensor) -> list[tuple[str, str, int, int]]:
    """(target, backend_config, operands, API version) of each custom call; the fake compiler's own rules have nothing against them."""
    module = schema.parse(emit(_program(function, *args), custom_calls=True).proto)
    assert refusals(module, {"--target": "trn2"}, schema) == []
    return [
        (i.custom_call_target, i.backend_config.decode(), len(i.operand_ids), i.custom_call_api_version)
        for computation in module.computations
        for i in computation.instructions
        if i.opcode == "custom-call"
    ]


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


X = torch.randn(2, 3, 8)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (lambda x: F.gelu(x), (X,), ("AwsNeuronGelu", "", 1)),
        (lambda x: F.gelu(x, approximate="tanh"), (X,), ("AwsNeuronGeluApprxTanh", "", 1)),
        (lambda g, x: torch.ops.aten.gelu_backward(g, x), (X, X + 1), ("AwsNeuronGeluBackward", "", 1)),
        (lambda x: F.silu(x), (X.bfloat16(),), ("AwsNeuronSilu", "", 1)),
        (lambda x: torch.softmax(x, 1), (X,), ("AwsNeuronSoftmax", "1", 1)),
        (lambda x: torch.softmax(x, -1), (X,), ("AwsNeuronSoftmax", "2", 1)),
        (lambda x: torch.softmax(x, -1, dtype=torch.float32), (X.bfloat16(),), ("AwsNeuronSoftmax", "2", 1)),
        (lambda g, y: torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32), (X, X + 1), ("AwsNeuronSoftmaxBackward", "2", 2)),
        (_norm, (X, torch.randn(8)), ("AwsNeuronRmsNorm", "2", 3)),
        (lambda x: torch.topk(x, 3)[1], (X,), ("AwsNeuronTopK", "3", 1)),
    ],
)
def test_contract(function: Callable[..., Any], args: tuple[torch.Tensor, ...], expected: tuple[str, str, int]) -> None:
    assert _calls(function, *args) == [(*expected, schema.API_VERSION)]


def test_the_order_and_the_constant_of_rms_norm() -> None:
    module = schema.parse(emit(_program(_norm, X, torch.randn(8)), custom_calls=True).proto)
    (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
    (call,) = (i for i in entry.instructions if i.opcode == "custom-call")
    operands = [next(i for i in entry.instructions if i.id == number) for number in call.operand_ids]
    assert [o.opcode for o in operands] == ["parameter", "parameter", "constant"]
    assert [list(o.shape.dimensions) for o in operands] == [[2, 3, 8], [8], []]


def test_the_derivative_is_multiplied_by_the_gradient() -> None:
    module = schema.parse(emit(_program(lambda g, x: torch.ops.aten.gelu_backward(g, x), X, X + 1), custom_calls=True).proto)
    (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
    by_id = {i.id: i for i in entry.instructions}
    (call,) = (i for i in entry.instructions if i.opcode == "custom-call")
    (product,) = (i for i in entry.instructions if i.opcode == "multiply")
    assert by_id[call.operand_ids[0]].parameter_number == 1
    assert {by_id[number].opcode for number in product.operand_ids} == {"parameter", "custom-call"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.topk(x, 3, dim=0)[0],  # along another dim
        lambda x: torch.topk(x, 3, largest=False)[0],
        lambda x: F.layer_norm(x, (8,)),  # no published target
    ],
)
def test_other_forms_keep_their_decomposition(function: Callable[..., Any]) -> None:
    assert _calls(function, torch.randn(4, 8)) == []


def test_without_the_option_there_is_none_and_both_forms_have_it_with() -> None:
    program = _program(lambda x: torch.softmax(F.silu(x), -1), X)
    plain = schema.parse(emit(program).proto)
    assert not any(i.opcode == "custom-call" for c in plain.computations for i in c.instructions)
    assert b"AwsNeuronSilu" not in bytecode(program)
    assert b"AwsNeuronSilu" in bytecode(program, custom_calls=True)


def test_option() -> None:
    assert Options.resolve({"custom_calls": True}, {}).custom_calls
    assert not Options.resolve({}, {}).custom_calls
    assert Options.resolve({}, {"NEURON_DYNAMO_CUSTOM_CALLS": "1"}).custom_calls
    with pytest.raises(OptionError, match="custom_calls"):
        Options.resolve({"custom_calls": "perhaps"}, {})
