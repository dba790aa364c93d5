"""addcmul and addcdiv with a value, which Dynamo takes apart: rounded once, as ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def inputs(*dtypes: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(64, 9, generator=generator).add(1).to(dtype) for dtype in dtypes]


def added(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.addcdiv(x, y, z, value=3.14)


def added_by_name(x: Tensor, y: Tensor, z: Tensor) -> Any:
    function: Any = getattr(torch, "addc" + "div")
    return function(x, y, z, value=3.14)


def added_in_place(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x.clone().addcdiv_(y, z, value=3.14).addcmul_(y, z[0], value=-0.7)


@pytest.mark.parametrize("fn", [added, added_by_name, added_in_place])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_is_rounded_once(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    given = inputs(dtype, dtype, dtype)
    made, expected = torch.compile(fn, backend="neuron", fullgraph=True)(*given), fn(*given)
    torch.testing.assert_close(made, expected, rtol=torch.finfo(dtype).eps, atol=0, equal_nan=True)
    assert (made != expected).sum() <= made.numel() // 100


def test_several_dtypes_are_computed_in_that_of_the_result() -> None:
    given = inputs(torch.float64, torch.bfloat16, torch.float16)
    made = torch.compile(added_in_place, backend="neuron", fullgraph=True)(*given)
    torch.testing.assert_close(made, added_in_place(*given))


def test_the_users_own_arithmetic_is_rounded_as_eager_rounds_it() -> None:
    def fn(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x + y / z * 3.14

    given = inputs(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(torch.compile(fn, backend="neuron", fullgraph=True)(*given), fn(*given), rtol=0, atol=0)


def test_the_users_own_arithmetic_in_code_without_a_source() -> None:
    made: dict[str, Any] = {}
    exec("def fn(x, y, z): return x + y / z * 3.14", made)
    given = inputs(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    compiled = torch.compile(made["fn"], backend="neuron", fullgraph=True)
    torch.testing.assert_close(compiled(*given), made["fn"](*given), rtol=0, atol=0)


def test_parts_that_are_used_elsewhere_and_values_that_are_tensors() -> None:
    def fn(x: Tensor, y: Tensor, z: Tensor) -> Any:
        product = y * z
        return x.clone().addcmul_(y, z, value=z[0, 0]), x.clone().addcdiv_(product, z, value=2), product

    given = inputs(torch.float32, torch.float32, torch.float32)
    torch.testing.assert_close(torch.compile(fn, backend="neuron", fullgraph=True)(*given), fn(*given))


def test_gradients() -> None:
    results = []
    for call in (torch.compile(added, backend="neuron", fullgraph=True), added):
        given = [x.requires_grad_() for x in inputs(torch.float32, torch.float32, torch.float32)]
        results.append(torch.autograd.grad(call(*given).square().sum(), given))
    torch.testing.assert_close(*results)
