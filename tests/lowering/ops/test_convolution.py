"""Convolution and its gradients against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import check, check_text, trace

forward = torch.ops.aten.convolution
backward = torch.ops.aten.convolution_backward

# name: (input, weight, stride, padding, dilation, transposed, output_padding, groups)
CASES: dict[str, tuple[Any, ...]] = {
    "1d": ((2, 4, 11), (6, 4, 3), [2], [1], [1], False, [0], 1),
    "1d causal depthwise": ((2, 6, 9), (6, 1, 4), [1], [3], [1], False, [0], 6),
    "2d": ((2, 3, 9, 8), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "2d strided, rest left over": ((2, 3, 10, 11), (4, 3, 3, 2), [3, 2], [1, 0], [1, 1], False, [0, 0], 1),
    "2d dilated": ((1, 3, 9, 9), (4, 3, 3, 3), [2, 1], [2, 2], [2, 3], False, [0, 0], 1),
    "2d grouped": ((2, 4, 7, 7), (6, 2, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
    "2d depthwise": ((2, 4, 7, 8), (4, 1, 3, 3), [2, 1], [1, 1], [1, 2], False, [0, 0], 4),
    "2d depthwise multiplier": ((2, 3, 7, 7), (6, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 3),
    "2d one stride for all dims": ((1, 2, 6, 6), (2, 2, 2, 2), [2], [0], [1], False, [0], 1),
    "2d stem": ((2, 3, 11, 11), (4, 3, 7, 7), [2, 2], [3, 3], [1, 1], False, [0, 0], 1),
    "2d pointwise strided": ((2, 3, 7, 8), (5, 3, 1, 1), [2, 3], [0, 0], [1, 1], False, [0, 0], 1),
    "2d pointwise padded": ((2, 3, 7, 8), (5, 3, 1, 1), [1, 1], [1, 2], [1, 1], False, [0, 0], 1),
    "3d": ((1, 2, 5, 6, 5), (3, 2, 2, 3, 2), [1, 2, 1], [0, 1, 1], [1, 1, 2], False, [0, 0, 0], 1),
    "transposed 1d": ((2, 4, 5), (4, 3, 3), [2], [1], [1], True, [1], 1),
    "transposed 2d": ((2, 4, 4, 5), (4, 3, 4, 4), [2, 2], [1, 1], [1, 1], True, [0, 0], 1),
    "transposed 2d grouped": ((2, 4, 4, 5), (4, 3, 3, 2), [3, 2], [1, 0], [2, 1], True, [2, 1], 2),
    "transposed 2d depthwise": ((2, 4, 4, 5), (4, 1, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 1], 4),
    "transposed 2d padding past the kernel": ((1, 2, 6, 6), (2, 3, 2, 2), [1, 1], [2, 2], [1, 1], True, [0, 0], 1),
    "transposed 3d, wide output_padding": ((1, 2, 3, 3, 3), (2, 2, 2, 2, 3), [3, 2, 1], [1, 0, 1], [3, 3, 2], True, [2, 2, 1], 2),
}


def _tensors(case: tuple[Any, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, w = (torch.randn(shape).to(dtype) for shape in case[:2])
    out = w.shape[1] * case[7] if case[5] else w.shape[0]
    return x, w, torch.randn(out).to(dtype)


@pytest.mark.parametrize("kind", ["1d", "2d", "3d", "transposed"])
def test_forward_and_gradients(kind: str) -> None:
    cases = [case for name, case in CASES.items() if name.startswith(kind)]
    tensors = [_tensors(case, torch.float64) for case in cases]
    grads = [torch.randn_like(forward(*given, *case[2:])) for case, given in zip(cases, tensors, strict=True)]

    def step(tensors: Any, grads: Any) -> Any:
        results = []
        for case, (x, w, bias), grad in zip(cases, tensors, grads, strict=True):
            results.append(forward(x, w, bias, *case[2:]))
            results += backward(grad, x, w, [bias.shape[0]], *case[2:], [True, True, True])
        return results

    check(step, tensors, grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    case = CASES["2d"]
    x, w, bias = _tensors(case, dtype)
    check(lambda x, w, bias: forward(x, w, bias, *case[2:]), x, w, bias)


def test_bfloat16_rounds_once() -> None:
    # 256 products of 1 and one of 2^-2: a bfloat16 sum would lose the small one, a float32 sum keeps it until the end.
    x = torch.ones(1, 258, 1, dtype=torch.bfloat16)
    w = torch.ones(1, 258, 1, dtype=torch.bfloat16)
    w[0, 256:] = 0.5
    check(lambda x, w: forward(x, w, None, [1], [0], [1], False, [0], 1), x, w, rtol=0, atol=0)


def test_output_masks() -> None:
    case = CASES["2d grouped"]
    x, w, _ = _tensors(case, torch.float64)
    grad = torch.randn_like(forward(x, w, None, *case[2:]))
    masks = ([True, False, False], [False, True, False], [False, False, True])
    check(lambda x, w, grad: [backward(grad, x, w, [6], *case[2:], mask) for mask in masks], x, w, grad)


def test_empty_batch() -> None:
    check(lambda x, w, bias: torch.nn.functional.conv2d(x, w, bias), torch.randn(0, 3, 5, 5), torch.randn(4, 3, 2, 2), torch.randn(4))


def test_batchless_and_same_padding() -> None:
    x, w = torch.randn(3, 6, 6), torch.randn(4, 3, 2, 4)
    check(lambda x, w: torch.nn.functional.conv2d(x, w, padding="same"), x, w, rtol=1e-5, atol=1e-5)


def test_program_is_one_convolution() -> None:
    x, w = torch.randn(1, 3, 9, 9), torch.randn(4, 3, 3, 3)
    text = check_text(lambda x, w: torch.nn.functional.conv2d(x, w, padding=1), x, w, rtol=1e-5, atol=1e-5)
    body = [line for line in text.splitlines() if "stablehlo." in line]
    assert len(body) == 1 and "stablehlo.convolution" in body[0]


@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
def test_weight_larger_than_input(kernel: tuple[int, int]) -> None:
    """Few places and many features: on the host a product of the weight with patches, elsewhere a convolution."""
    torch.manual_seed(0)
    x, w, bias = torch.randn(2, 5, 6, 7).double(), torch.randn(40, 5, *kernel).double(), torch.randn(40).double()

    def step(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, bias, stride=(2, 3), padding=(1, 0), dilation=(2, 1))

    text = check_text(step, x, w, bias)
    assert "stablehlo.dot_general" in text and "stablehlo.convolution" not in text
    elsewhere = lower(trace(lambda x, w, bias: (step(x, w, bias),), [x.float(), w.float(), bias.float()]).graph, get_target("trn2"))
    assert "stablehlo.convolution" in stablehlo_text(elsewhere.stablehlo)
