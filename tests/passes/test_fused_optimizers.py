"""Steps of optimizers with fused=True against eager's kernels, on the functional ops."""

from typing import Any

import pytest
import torch

from tests.lowering.opcheck import check

aten = torch.ops.aten
SHAPES = [(3, 4), (5,), ()]


def _lists(count: int, dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.rand(shape, generator=generator).to(dtype) for shape in SHAPES] for _ in range(count)]


def _steps(number: float) -> list[torch.Tensor]:
    return [torch.tensor(number) for _ in SHAPES]


@pytest.mark.parametrize("number", [1.0, 1000.0])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("op", [aten._fused_adam, aten._fused_adamw], ids=str)
def test_adam(op: Any, amsgrad: bool, number: float) -> None:
    options = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": amsgrad, "maximize": not amsgrad}
    largest = _lists(5)[4] if amsgrad else []
    check(lambda *lists: op(*lists, lr=0.01, **options), *_lists(4), largest, _steps(number))
    check(lambda *lists: op.tensor_lr(*lists[:-1], lr=lists[-1], **options), *_lists(4), largest, _steps(number), torch.tensor(0.01))


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_scaled_gradients_and_overflow(found: float) -> None:
    options = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}

    def step(lists: Any, steps: Any, scale: torch.Tensor, found: torch.Tensor) -> Any:
        params, _, *state, _ = aten._fused_adam(*lists, [], steps, **options, grad_scale=scale, found_inf=found)
        return params, state

    check(step, _lists(4), _steps(2.0), torch.tensor(8.0), torch.tensor(found))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(first: bool, nesterov: bool) -> None:
    dampening = 0.0 if nesterov else 0.2
    options = {
        "weight_decay": 0.1,
        "lr": 0.05,
        "dampening": dampening,
        "nesterov": nesterov,
        "maximize": False,
        "is_first_step": first,
    }
    check(lambda *lists: aten._fused_sgd(*lists, momentum=0.9, **options), *_lists(3))
    check(lambda *lists: aten._fused_sgd(*lists, [], momentum=0.0, **{**options, "nesterov": False}), *_lists(2))


def test_adagrad() -> None:
    options = {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-10, "maximize": True}
    check(lambda *lists: aten._fused_adagrad(*lists, **options), *_lists(3), _steps(3.0))


def test_low_precision_rounds_once() -> None:
    options = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False, "maximize": False}
    check(lambda *lists: aten._fused_adamw(*lists, **options), *_lists(4, torch.bfloat16), [], _steps(3.0))
