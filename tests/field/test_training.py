"""Field cases of the kind TRAINING."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.field.check import compiled, host_ops


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_two_results_in_the_loss(used: int) -> None:
    """B163"""
    model = nn.Linear(4, 4)

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return y.tanh(), y.exp()

    grads = []
    for f in (fn, compiled(fn)):
        model.zero_grad()
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        f(x)[used].sum().backward()
        grads.append([x.grad, *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(grads[1], grads[0])


def test_a_result_that_needs_no_gradient() -> None:
    """B163: integers and detached results beside a loss."""
    f = compiled(lambda x: ((x * x).sum(), x.argmax(), x.detach() * 2))
    x = torch.tensor([1.0, 3, 2], requires_grad=True)
    loss, index, detached = f(x)
    loss.backward()
    assert torch.equal(x.grad, 2 * x.detach()) and index == 1 and not detached.requires_grad


class TinyGPT(nn.Module):
    """Token and position tables, one causal block, and a head that is the token table."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20, 8), nn.Embedding(8, 8)
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def test_gpt_with_tied_embeddings() -> None:
    """B165: three steps, weights as eager's; GPT-2 itself is in tests/models."""
    models = [TinyGPT()]
    models.append(copy.deepcopy(models[0]))
    assert models[1].head.weight is models[1].tokens.weight
    runs = [models[0], compiled(models[1])]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    for step in range(3):
        ids = torch.randint(0, 20, (2, 8), generator=torch.Generator().manual_seed(step))
        losses = []
        for run, optimizer in zip(runs, optimizers, strict=True):
            optimizer.zero_grad()
            loss = run(ids)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(models[1].named_parameters()), dict(models[0].named_parameters()), rtol=1e-3, atol=1e-4)
    assert not host_ops()


def test_checkpoints_of_compiled_models() -> None:
    """B167: saved compiled and loaded plain, and back; model.compile() adds no prefix."""
    source, target = nn.Linear(3, 3), nn.Linear(3, 3)
    f = compiled(source)
    x = torch.randn(2, 3)
    f(x)
    saved = f.state_dict()
    assert set(saved) == {"_orig_mod.weight", "_orig_mod.bias"}
    target.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in saved.items()})
    torch.testing.assert_close(target(x), f(x))
    f.load_state_dict({f"_orig_mod.{k}": torch.zeros_like(v) for k, v in target.state_dict().items()})
    assert not f(x).any()
    target.compile(backend="neuron")
    assert list(target.state_dict()) == ["weight", "bias"]
    torch.testing.assert_close(target(x), nn.functional.linear(x, target.weight, target.bias))


def test_writes_into_slices_and_saved_inputs_as_results() -> None:
    """B169"""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * w
        y[:, 2:] = w[2:] * 3
        y[0] += x[1]
        return y.exp(), w, x[:, 1:] + y[:, :-1]

    grads = []
    for f in (fn, compiled(fn)):
        x, w = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_(), torch.linspace(1, 2, 4).requires_grad_()
        first, returned, third = f(x, w)
        assert returned is w or torch.equal(returned, w)
        (first.sum() + third.square().sum() + returned.sum()).backward()
        grads.append([first.detach(), x.grad, w.grad])
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_accumulated_and_clipped_gradients(accumulate: int) -> None:
    """B169: several backwards before a step, the norm clipped, one parameter shared by two layers."""
    first = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    first[2].weight = first[0].weight
    second = copy.deepcopy(first)
    norms = []
    for model, run in ((first, first), (second, compiled(second))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(accumulate):
            run(torch.full((2, 4), 0.1 * (step + 1))).square().sum().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    torch.testing.assert_close(*norms)
    torch.testing.assert_close(list(second.parameters()), list(first.parameters()))
