"""Memory format channels_last through a convolutional network: values, and the strides of results and gradients, as eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.features.native import compiled, host_ops


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Upsample(scale_factor=2),
        nn.AvgPool2d(2),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
    )


@pytest.mark.parametrize("weights", ["channels_last", "contiguous"])
def test_training_steps(weights: str) -> None:
    first = network().to(memory_format=torch.channels_last if weights == "channels_last" else torch.contiguous_format)
    second = copy.deepcopy(first)
    assert all(p.stride() == q.stride() for p, q in zip(first.parameters(), second.parameters(), strict=True))
    run = compiled(second)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (first, second)]
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
        seen = []
        for module, f, optimizer in zip((first, second), (first, run), optimizers, strict=True):
            given = x.clone(memory_format=torch.preserve_format).requires_grad_()
            optimizer.zero_grad()
            out = f(given)
            (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
            seen.append([out.detach(), given.grad, *(p.grad for p in module.parameters())])
            optimizer.step()
        torch.testing.assert_close(seen[1], seen[0], rtol=1e-3, atol=1e-4, check_stride=True)
        torch.testing.assert_close(list(second.state_dict().values()), list(first.state_dict().values()), rtol=1e-3, atol=1e-4)
        assert seen[1][0].is_contiguous(memory_format=torch.channels_last)
    assert not host_ops()


@pytest.mark.parametrize("dims", [2, 3])
def test_inference_and_conversions(dims: int) -> None:
    form = torch.channels_last if dims == 2 else torch.channels_last_3d
    layer = (nn.Conv2d if dims == 2 else nn.Conv3d)(3, 4, 3, padding=1).to(memory_format=form)
    x = torch.randn(2, 3, *[5] * dims)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            y = layer(x.to(memory_format=form))
        return y, y.relu(), y.contiguous(), y + 1, y.clone(memory_format=torch.contiguous_format), y.flatten(1), y[:, 1:]

    torch.testing.assert_close(compiled(fn)(x), fn(x), rtol=1e-4, atol=1e-5, check_stride=True)
    assert not host_ops()
