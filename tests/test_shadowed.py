"""Ops whose definition by PyTorch, before autograd, gives other numbers than eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_impls import get_fast_op_impls

from neuron_dynamo.shadowed import _KEYS, _OPS, set_aside

INF, NAN = float("inf"), float("nan")
LABELS = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [0, 1, 2, 3]])
CLASSES = torch.tensor([1, 0, 3])


def agree(function: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> None:
    """`function` and its gradients, compiled as eager."""
    results = []
    for call in (function, torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)):
        given = x.clone().requires_grad_()
        made = call(given)
        results.append((made, *torch.autograd.grad(made, given, [torch.full_like(y, 1 + n) for n, y in enumerate(made)])))
    torch.testing.assert_close(results[1], results[0], equal_nan=True)


def losses(x: Tensor) -> list[Tensor]:
    labelled = [F.multilabel_margin_loss(x, LABELS, reduction=how) for how in ("none", "mean", "sum")]
    return [*labelled, *(F.multi_margin_loss(x, CLASSES, reduction=how) for how in ("none", "mean", "sum"))]


@pytest.mark.parametrize("odd", [0.5, INF, -INF, NAN])
def test_margin_losses(odd: float) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    x[2, 1] = odd
    agree(losses, x)


def test_margin_losses_of_one_row_and_of_powers() -> None:
    x = torch.randn(4, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0])
    agree(lambda x: [F.multilabel_margin_loss(x, LABELS[0]), F.multi_margin_loss(x, CLASSES[0], 2, 0.7, weights, reduction="none")], x)


RESIZED: dict[str, dict[str, Any]] = {
    "linear": {"mode": "linear"},
    "bilinear": {"mode": "bilinear"},
    "bilinear, antialiased": {"mode": "bilinear", "antialias": True},
    "bicubic": {"mode": "bicubic"},
    "trilinear": {"mode": "trilinear"},
}


@pytest.mark.parametrize("name", RESIZED)
def test_an_infinity_beside_finite_numbers(name: str) -> None:
    given = RESIZED[name]
    spatial = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}[given["mode"]]
    x = torch.arange(4.0**spatial).reshape(1, 1, *(4,) * spatial).repeat(1, 2, *(1,) * spatial)
    x[(0, 1, *(1,) * spatial)] = INF
    agree(lambda x: [F.interpolate(x, scale_factor=factor, **given) for factor in (2.0, 1.5, 0.5)], x)


@pytest.mark.parametrize("name", RESIZED)
@pytest.mark.parametrize("recomputed", [False, True])
def test_symbolic_sizes_stay_symbolic(name: str, recomputed: bool) -> None:
    given = RESIZED[name]
    spatial = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}[given["mode"]]
    counter = CompileCounterWithBackend("neuron")

    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x.mT, scale_factor=1.5, recompute_scale_factor=recomputed, **given).sin()

    for sizes in ((2, 3, *(5, 6, 4)[:spatial]), (4, 2, *(7, 3, 5)[:spatial])):
        results = []
        for call in (torch.compile(resized, backend=counter, dynamic=True, fullgraph=True), resized):
            x = torch.randn(sizes, generator=torch.Generator().manual_seed(0)).requires_grad_()
            made = call(x)
            made.square().sum().backward()
            results.append((made, x.grad))
        torch.testing.assert_close(*results)
    assert counter.frame_count == 1


def test_symbolic_sizes_of_losses_and_activations() -> None:
    counter = CompileCounterWithBackend("neuron")

    def fn(x: Tensor, labels: Tensor) -> list[Tensor]:
        return [F.multi_margin_loss(x, labels[:, 0]), F.multilabel_margin_loss(x, labels), F.softshrink(x.mT)]

    for rows, classes in ((3, 4), (5, 2)):
        results = []
        for call in (torch.compile(fn, backend=counter, dynamic=True, fullgraph=True), fn):
            x = torch.randn(rows, classes, generator=torch.Generator().manual_seed(0)).requires_grad_()
            made = call(x, torch.arange(classes).repeat(rows, 1))
            results.append((made, *torch.autograd.grad(made, x, [torch.full_like(y, 2) for y in made])))
        torch.testing.assert_close(*results)
    assert counter.frame_count == 1


@pytest.mark.parametrize("channels_last", [False, True])
def test_strides_of_what_is_resized(channels_last: bool) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)

    def resized(x: Tensor) -> list[Tensor]:
        return [F.interpolate(x, scale_factor=2.0, mode=mode) for mode in ("bilinear", "bicubic")]

    for dynamic in (False, True):
        made = torch.compile(resized, backend="neuron", fullgraph=True, dynamic=dynamic)(x)
        assert [y.stride() for y in made] == [y.stride() for y in resized(x)]
        torch._dynamo.reset()


def test_others_find_pytorchs_definitions_as_they_were() -> None:
    before = {(op, key): op.py_kernels.get(key) for op in _OPS for key in _KEYS}
    fakes = dict(get_fast_op_impls())
    assert any(before.values())
    with contextlib.suppress(ValueError), set_aside():
        assert not any(op.py_kernels.get(key) is before[op, key] for op, key in before if before[op, key] is not None)
        raise ValueError
    assert {(op, key): op.py_kernels.get(key) for op in _OPS for key in _KEYS} == before
    assert get_fast_op_impls() == fakes
