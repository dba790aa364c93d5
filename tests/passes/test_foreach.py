"""Foreach decompositions: each becomes plain ops on the tensors of the lists, with eager's values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuron_dynamo.passes.foreach import foreach_decompositions
from tests.lowering.opcheck import check, trace

CASES: dict[str, Any] = {
    "scalar": lambda a, b, c: torch._foreach_add(a, 2.0),
    "list with alpha": lambda a, b, c: torch._foreach_sub(a, b, alpha=3),
    "scalar list": lambda a, b, c: torch._foreach_mul(a, [2.0, -3.0]),
    "tensor": lambda a, b, c: torch._foreach_mul(a, a[0].sum()),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.5),
    "addcdiv, scalar list": lambda a, b, c: torch._foreach_addcdiv(a, b, c, [0.5, 2.0]),
    "lerp": lambda a, b, c: torch._foreach_lerp(a, b, 0.3),
    "lerp by tensors": lambda a, b, c: torch._foreach_lerp(a, b, c),
    "clamp": lambda a, b, c: torch._foreach_maximum(torch._foreach_minimum(a, 0.5), b),
    "pow of a scalar": lambda a, b, c: torch._foreach_pow(2.0, a),
    "norm": lambda a, b, c: torch._foreach_norm(a, 1),
    "abs and sqrt": lambda a, b, c: torch._foreach_sqrt(torch._foreach_abs(a)),
}


def _tensors() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def one() -> list[torch.Tensor]:
        return [torch.rand(3, 4, generator=generator) + 0.1, torch.rand(5, generator=generator) + 0.1]

    return one(), one(), one()


@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str) -> None:
    check(CASES[name], *_tensors())


def test_in_place_forms_leave_no_foreach_op() -> None:
    def step(parameter: torch.Tensor, grad: torch.Tensor, square: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parameters, squares = [parameter.clone()], [square.clone()]
        torch._foreach_lerp_(squares, [grad], 0.1)
        torch._foreach_addcdiv_(parameters, [grad], torch._foreach_sqrt(squares), value=-0.01)
        return parameters[0], squares[0]

    tensors = [torch.rand(3, 4) + 0.1 for _ in range(3)]
    gm = trace(step, tensors)
    assert not [n for n in gm.graph.nodes if "foreach" in str(n.target)]
    check(step, *tensors)


def test_every_functional_overload_that_can_be_traced_is_covered() -> None:
    names = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::_foreach_")}
    functional = {n for n in names if not n.partition(".")[0].endswith("_") and not n.endswith("out")}
    left = {"aten::_foreach_powsum.Scalar", "aten::_foreach_addcmul.Tensor", "aten::_foreach_addcdiv.Tensor"}
    assert functional - {op.name() for op in foreach_decompositions()} == left
