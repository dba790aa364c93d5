"""Several steps in a row: compiled optimizer, adversarial pair, gradient checkpointing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.models import zoo
from tests.models.compare import compiler
from tests.models.plain import dcgan_pair


def train(name: str, steps: int, compile_with: Callable[[Any], Any] | None) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and the state (parameters, buffers) after AdamW steps on one batch; the model and the optimizer step are both compiled."""
    model = zoo.build(name)
    wrap = compile_with or (lambda target: target)
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=3e-3, weight_decay=0.01)
    forward, step = wrap(model.module), wrap(optimizer.step)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.loss(forward(*model.args, **model.kwargs))
        loss.backward()
        step()
        losses.append(loss.item())
    return losses, model.module.state_dict()


@pytest.mark.parametrize("name", ["mlp", "llama", "resnet"])
def test_twenty_steps_of_adamw(name: str) -> None:
    torch._dynamo.reset()
    eager, eager_state = train(name, 20, None)
    compiled, state = train(name, 20, compiler())
    assert eager[-1] < 0.9 * eager[0]  # it learns, so the comparison means something
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-4)
    for key, value in eager_state.items():
        # AdamW divides by the gradient's own size: an element whose gradient is rounding noise moves by up to the learning rate
        # each step in either direction, so single elements may part; the tensor as a whole may not.
        difference = (state[key] - value).double().norm() / value.double().norm().clamp(min=1.0)
        assert difference < 2e-2, (key, float(difference))


def test_adamw_step_is_exact_on_given_gradients() -> None:
    """The compiled step alone, fed with eager's gradients: parameters and both moments at assert_close's tolerance."""
    torch._dynamo.reset()
    first = zoo.build("mlp").module
    second = copy.deepcopy(first)
    optimizers = [torch.optim.AdamW(module.parameters(), lr=1e-2) for module in (first, second)]
    steps = [optimizers[0].step, compiler()(optimizers[1].step)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        for one, two in zip(first.parameters(), second.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            two.grad = one.grad.clone()
        for step in steps:
            step()
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    torch.testing.assert_close(list(second.parameters()), list(first.parameters()))
    torch.testing.assert_close(states[1], states[0])
    assert states[1][0]["step"] == 5


def adversarial(steps: int, compile_with: Callable[[Any], Any] | None) -> list[float]:
    """DCGAN training: the discriminator on real and detached fake images, then the generator through the discriminator."""
    torch.manual_seed(11)
    generator, discriminator = dcgan_pair()
    wrap = compile_with or (lambda target: target)
    make, judge = wrap(generator), wrap(discriminator)
    optimizers = [torch.optim.Adam(part.parameters(), lr=2e-3, betas=(0.5, 0.999)) for part in (generator, discriminator)]
    losses = []
    for step in range(steps):
        noise = torch.randn(8, 12, 1, 1, generator=torch.Generator().manual_seed(step))
        real = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(100 + step))
        fake = make(noise)
        optimizers[1].zero_grad()
        verdict_real, verdict_fake = judge(real), judge(fake.detach())
        loss = F.binary_cross_entropy_with_logits(verdict_real, torch.ones(8, 1))
        loss = loss + F.binary_cross_entropy_with_logits(verdict_fake, torch.zeros(8, 1))
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        deceit = F.binary_cross_entropy_with_logits(judge(fake), torch.ones(8, 1))
        deceit.backward()
        optimizers[0].step()
        losses += [loss.item(), deceit.item()]
    return losses


def test_dcgan_pair() -> None:
    torch._dynamo.reset()
    eager = adversarial(5, None)
    assert max(eager) - min(eager) > 0.1
    torch.testing.assert_close(adversarial(5, compiler()), eager, rtol=1e-3, atol=1e-4)


class Checkpointed(nn.Module):
    """Residual blocks with dropout, each recomputed in the backward."""

    def __init__(self, active: bool) -> None:
        super().__init__()
        self.active = active
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 16)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.active else block(x))
        return x


def checkpointed_gradients(active: bool, compile_with: Callable[[Any], Any] | None) -> list[Tensor]:
    torch.manual_seed(5)
    module = Checkpointed(active)
    x = torch.randn(8, 16, requires_grad=True)
    torch.manual_seed(6)
    out = (compile_with(module) if compile_with else module)(x)
    out.pow(2).sum().backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    assert x.grad is not None
    return [out.detach(), x.grad, *(gradient for gradient in gradients if gradient is not None)]


def test_gradient_checkpointing_with_dropout() -> None:
    """The recomputed forward drops the same elements; under rng="eager" they are eager's own."""
    torch._dynamo.reset()
    eager = checkpointed_gradients(True, None)
    assert len(eager) == 14
    torch.testing.assert_close(checkpointed_gradients(False, None), eager)
    torch.testing.assert_close(checkpointed_gradients(True, compiler(rng="eager")), eager)


def test_gradient_checkpointing_in_graph_random_numbers() -> None:
    """Under the default rng="graph" the mask is another than eager's, but forward and recomputation must share it.

    The model is linear in x once the mask is drawn, so that the gradient of sum(out) is out / x for a scalar input.
    """
    torch._dynamo.reset()
    dropout = nn.Dropout(0.5)

    def scaled(x: Tensor) -> Tensor:
        return checkpoint(lambda y: dropout(y * 3.0) * 2.0, x, use_reentrant=False)

    compiled = compiler()(scaled)
    x = torch.rand(64) + 0.5
    x.requires_grad_()
    out = compiled(x)
    out.sum().backward()
    assert 0 < int((out == 0).sum()) < 64
    torch.testing.assert_close(x.grad, (out / x).detach())
