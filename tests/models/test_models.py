"""Every zoo model through the backend, beside eager: outputs, loss, all gradients, buffers, inputs and the generator's state."""

from __future__ import annotations

import pytest
import torch

from tests.models import zoo
from tests.models.compare import Result, check, compiler, distance, errors, run

IN_BF16 = {"training": ["mlp", "resnet", "llama", "bert"], "inference": ["lstm", "dlrm", "vit", "mamba"]}
"""The sample of bf16 runs; `tools/zoo` makes them all."""
INFERENCE = ("resnet", "transformer_encoder", "lstm", "gpt2")
"""Models whose inference the suite runs in f32: other arithmetic than their training's (statistics, fused paths, no dropout). Of the
rest it runs the training alone, whose outputs are compared too; `-m sweep` runs their inference."""
LONG = {(name, "inference", "f32") for name in zoo.names() if name not in INFERENCE}
LONG |= {("bert", "training", "bf16"), ("dlrm", "inference", "bf16"), ("vit", "inference", "bf16")}
RUNS = [(name, mode, "f32") for name in zoo.names() for mode in IN_BF16] + [
    (name, mode, "bf16") for mode in IN_BF16 for name in IN_BF16[mode]
]
CASES = [pytest.param(*run, marks=[pytest.mark.sweep] if run in LONG else []) for run in RUNS]


@pytest.mark.parametrize(("name", "mode", "precision"), CASES)
def test_model_equals_eager(name: str, mode: str, precision: str) -> None:
    model = zoo.build(name)
    training, autocast = mode == "training", precision == "bf16"
    draws = model.random and training
    eager = run(model, training=training, autocast=autocast)
    exact = run(model, training=training, float64=True)
    compiled = run(model, training=training, autocast=autocast, compile_with=compiler(**({"rng": "eager"} if draws else {})))
    check(compiled, eager, exact, torch.bfloat16 if autocast else torch.float32)
    assert torch.equal(compiled.rng_state, eager.rng_state)
    assert compiled.graphs == model.graphs, compiled.breaks


def test_the_zoo_is_deterministic() -> None:
    first, second = run(zoo.build("llama"), training=True), run(zoo.build("llama"), training=True)
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)
    before = torch.get_rng_state()
    zoo.build("mlp")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["resnet", "llama", "bert"])
def test_the_yardstick_sees_a_small_error(name: str) -> None:
    """A relative error of 1e-4 in any one tensor that is not noise fails the check."""
    model = zoo.build(name)
    eager, exact = run(model, training=True), run(model, training=True, float64=True)
    check(eager, eager, exact)
    assert any(distance(eager.tensors[key], exact.tensors[key]) > 0 for key in eager.tensors)
    for key, tensor in eager.tensors.items():
        if not tensor.is_floating_point() or tensor.abs().max() < 1e-3 * eager.largest_gradient:
            continue
        spoiled = Result({**eager.tensors, key: tensor * 1.0001}, eager.rng_state)
        assert [error.name for error in errors(spoiled, eager, exact) if not error.ok] == [key]
