"""Field cases of the kind MUTATION: writes into inputs, buffers and parameters, and weights that change between calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.field.check import check, compiled, host_ops


@pytest.mark.parametrize("grad_mode", [True, False])
def test_writes_into_inputs(grad_mode: bool) -> None:
    """B125"""

    def fn(x: Tensor, y: Tensor, n: Tensor) -> Tensor:
        x.copy_(y)
        x.mul_(2)
        n.add_(1)
        y.fill_(3)
        return x + n

    with torch.set_grad_enabled(grad_mode):
        check(fn, torch.randn(3), torch.randn(3), torch.arange(3))


def test_copy_converts_and_broadcasts() -> None:
    """B125"""

    def fn(x: Tensor, n: Tensor, half: Tensor, y: Tensor) -> None:
        x.copy_(y)
        n.copy_(y * 3)
        half.copy_(y)

    check(fn, torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bfloat16), torch.tensor([1.7, -2.6, 0.3]))


class Rotary(nn.Module):
    """Tables in buffers that are in no state_dict."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10 ** (torch.arange(0, 4) / 4), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.outer(torch.arange(x.shape[0], dtype=torch.float32), self.inv_freq)
        return x * angle.cos() + x.flip(-1) * angle.sin()


@pytest.mark.parametrize("persistent", [False, True])
def test_buffers_that_are_not_persistent(persistent: bool) -> None:
    """B127: and a buffer that is replaced between calls is seen."""
    model = Rotary(persistent)
    f = compiled(model)
    x = torch.randn(5, 4)
    torch.testing.assert_close(f(x), model(x))
    model.inv_freq = torch.ones(4)
    torch.testing.assert_close(f(x), model(x))


class State(nn.Module):
    """A buffer written and returned, one written as a ring, one through a view, and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("conv_state", torch.zeros(2, 3, 4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.plain = torch.zeros(4, 3)

    def forward(self, x: Tensor, at: Tensor) -> Any:
        self.total.add_(x)
        self.conv_state.copy_(torch.roll(self.conv_state, -1, -1))
        self.conv_state[:, :, -1] = x
        self.steps += 1
        self.plain.index_copy_(0, at, x[None])
        return self.total, self.conv_state.sum(-1), self.plain * 2, self.steps * x


@pytest.mark.parametrize("training", [False, True])
def test_state_over_calls(training: bool) -> None:
    """B129, B131, B133"""
    ours, theirs = State(), State()
    f = compiled(ours)
    for step in range(3):
        x, at = torch.randn(3, requires_grad=False), torch.tensor([step])
        with torch.set_grad_enabled(training):
            got, wanted = f(x, at), theirs(x, at)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
        torch.testing.assert_close(ours.plain, theirs.plain)
        assert got[0] is ours.total
    assert not host_ops()


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "column": lambda x: x[:, 0].mul_(2),
    "transposed": lambda x: x.t().add_(1),
    "strided": lambda x: x[::2, 1::2].fill_(7),
    "diagonal": lambda x: x.diagonal().zero_(),
    "view of a view": lambda x: x[1:].t()[0].copy_(x[1:, 3]),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("base", ["dense", "slice"])
def test_writes_through_views(name: str, base: str) -> None:
    """B135: into part of an input, which may itself be part of a larger tensor."""
    ours = torch.arange(48.0).reshape(6, 8)
    theirs = ours.clone()
    pick: Callable[[Tensor], Tensor] = (lambda t: t) if base == "dense" else (lambda t: t[1:5, 2:7])

    def fn(x: Tensor) -> Tensor:
        WRITES[name](x)
        return x.sum(0)

    torch.testing.assert_close(compiled(fn)(pick(ours)), fn(pick(theirs)))
    torch.testing.assert_close(ours, theirs)


def adapted(model: nn.Linear) -> None:
    """Merge a low-rank update into the weight, as LoRA does before serving."""
    model.weight.data += torch.ones(4, 1) @ torch.full((1, 4), 0.5)


CHANGES: dict[str, Callable[[nn.Linear], Any]] = {
    "load_state_dict": lambda m: m.load_state_dict({k: torch.randn_like(v) for k, v in m.state_dict().items()}),
    "load_state_dict, assign": lambda m: m.load_state_dict({k: torch.randn_like(v) for k, v in m.state_dict().items()}, assign=True),
    "data": lambda m: setattr(m.weight, "data", torch.randn(4, 4)),
    "data, another layout": lambda m: setattr(m.weight, "data", torch.randn(4, 4).t()),
    "new parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.randn(4, 4))),
    "LoRA": adapted,
    "frozen": lambda m: m.weight.requires_grad_(False).mul_(2),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("evaluating", [False, True])
def test_weights_that_change_between_calls(name: str, evaluating: bool) -> None:
    """B137"""
    model = nn.Linear(4, 4).train(not evaluating)
    f = compiled(model)
    x = torch.randn(2, 4)
    with torch.set_grad_enabled(not evaluating):
        torch.testing.assert_close(f(x), model(x))
        CHANGES[name](model)
        torch.testing.assert_close(f(x), model(x))


def test_weights_that_an_optimizer_changes() -> None:
    """B137"""
    model = nn.Linear(4, 4)
    f = compiled(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(f(x), nn.functional.linear(x, model.weight, model.bias))
        f(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "change",
    [lambda x: x.unsqueeze_(0), lambda x: x.t_(), lambda x: x.unsqueeze_(1).squeeze_(1), lambda x: x.transpose_(0, 1)],
    ids=["unsqueeze_", "t_", "both", "transpose_"],
)
def test_shape_changed_in_place(change: Callable[[Tensor], Any]) -> None:
    """B139"""
    ours = torch.randn(2, 1, 4)[:, 0]
    theirs = ours.clone()

    def fn(x: Tensor) -> Tensor:
        change(x)
        return x + 1

    torch.testing.assert_close(compiled(fn, fullgraph=False)(ours), fn(theirs), check_stride=True)
    assert ours.shape == theirs.shape


def test_data_and_set() -> None:
    """B141: what a tensor's memory is exchanged for is seen by its holder and by the next call."""

    def exchange(x: Tensor, y: Tensor) -> Tensor:
        x.data = y.data * 2
        return x + 1

    def take(x: Tensor, y: Tensor) -> Tensor:
        x.set_(y)
        x.add_(1)
        return x * 2

    for fn in (exchange, take):
        torch._dynamo.reset()
        f = compiled(fn, fullgraph=False)
        for _ in range(2):
            args = torch.randn(3), torch.randn(3)
            ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
            torch.testing.assert_close(f(*ours), fn(*theirs))
            torch.testing.assert_close(ours, theirs)
