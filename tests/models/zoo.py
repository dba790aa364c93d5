"""The model zoo: small randomly initialised models, deterministic, each a few seconds to compile in both directions.

A model is a builder registered under its name. `build(name)` returns a fresh, seeded `ZooModel` every time. Weights that
PyTorch initialises to a constant (biases, norm scales, BatchNorm statistics) get noise, so that a program that drops or swaps
one of them gives another answer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

SEED = 20260


@dataclass(frozen=True)
class ZooModel:
    """One model with the call that runs it.

    module: in training mode, f32. args, kwargs: of one call. loss: scalar tensor of the call's output.
    random: whether training draws random numbers (dropout), which are equal to eager's only under options={"rng": "eager"}.
    dynamo: settings of torch._dynamo.config that Dynamo itself needs to capture the model.
    graphs: how many Dynamo captures; more than one where the model breaks the graph by itself.
    notes: what a user who compiles this model has to know.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Tensor] = lambda out: out.loss
    random: bool = False
    dynamo: Mapping[str, Any] = field(default_factory=dict)
    graphs: int = 1
    notes: str = ""


Builder = Callable[[], ZooModel]
_BUILDERS: dict[str, Builder] = {}
_ROOMS = ("tests.models.plain", "tests.models.huggingface")


def register(builder: Callable[[str], ZooModel]) -> Callable[[str], ZooModel]:
    """Decorator: the function's name, without underscores around it, is the model's name; the function receives it."""
    name = builder.__name__.strip("_")
    assert name not in _BUILDERS, name
    _BUILDERS[name] = lambda: builder(name)
    return builder


def names() -> list[str]:
    """Every model's name, in the order of registration."""
    for room in _ROOMS:
        importlib.import_module(room)
    return list(_BUILDERS)


def build(name: str) -> ZooModel:
    """A fresh model of that name; equal in every call and process. The default generator is left as it was found."""
    known = names()
    if name not in known:
        raise KeyError(f"no model {name!r}; there are {', '.join(known)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = _BUILDERS[name]()
        _roughen(model.module)
    model.module.train()
    return model


@torch.no_grad()
def _roughen(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            assert part.running_mean is not None and part.running_var is not None
            part.running_mean.add_(torch.randn_like(part.running_mean), alpha=0.1)
            part.running_var.add_(torch.rand_like(part.running_var))


def mean_square(out: Any) -> Tensor:
    """A loss for models without labels: the mean of squares of every float tensor in the output."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(out) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    total = leaves[0].pow(2).mean()
    for leaf in leaves[1:]:
        total = total + leaf.pow(2).mean()
    return total
