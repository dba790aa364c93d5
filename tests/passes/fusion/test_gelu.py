"""GELU as models write it out: every factoring is known, no other constant is, and composites change no number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN

import neuron_dynamo
from neuron_dynamo.lowering.hlo import emit, schema
from neuron_dynamo.lowering.pipeline import lower
from neuron_dynamo.passes.decompositions import decomposition_table
from neuron_dynamo.passes.fusion import fuse
from neuron_dynamo.target import get_target
from tests.passes.fusion.test_fusion import ROOT, Function, _check, _found, _names, _top_level

NAMES = {
    "gelu_new": "gelu",
    "gelu_accurate": "gelu",
    "gelu_python_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
}


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_activations_of_transformers(activation: str, dtype: torch.dtype) -> None:
    """In bfloat16, 1 + t has few digits left where t is near -1, so the last one of t tells."""
    name, x = NAMES[activation], 3 * torch.randn(4, 16, dtype=dtype)
    atol = 2e-2 if dtype == torch.bfloat16 else None
    _check(ACT2FN[activation], x, names=[name], atol=atol)
    _check(ACT2FN[activation], x.requires_grad_(), names=[name, f"{name}_backward"], atol=atol)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))), "gelu"),  # Bloom
        (lambda x: 0.5 * (x * (1 + torch.tanh(ROOT * (x + 0.044715 * x * x * x)))), "gelu"),
        (lambda x: x * (0.5 * (1 + torch.erf(x * 0.7071067811865476))), "gelu"),
        (lambda x: 0.5 * x + 0.5 * x * torch.erf(x / 2**0.5), "gelu"),
        (lambda x: x * torch.sigmoid(x), "silu"),
    ],
)
def test_other_factorings(function: Function, name: str) -> None:
    _check(function, torch.randn(4, 8), names=[name])
    _check(function, torch.randn(4, 8, requires_grad=True), names=[name, f"{name}_backward"])


@pytest.mark.parametrize(("activation", "name"), [("gelu_new", "geglu"), ("gelu_python", "geglu")])
def test_as_gate(activation: str, name: str) -> None:
    act = ACT2FN[activation]
    _check(lambda x, up: act(x) * up, torch.randn(4, 8), torch.randn(4, 8), names=[name])


def test_of_a_sum() -> None:
    """x is itself arithmetic: a bias that is added."""
    _check(lambda x, bias: ACT2FN["gelu_new"](x * 0.7 + bias), torch.randn(4, 8), torch.randn(8), names=["gelu"])


def test_an_inner_result_that_is_read() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        t = torch.tanh(ROOT * (x + 0.044715 * x**3))
        return 0.5 * x * (1 + t) + t.exp()

    _check(both, torch.randn(4, 8), names=["gelu"])


def test_recomputed_in_the_backward() -> None:
    """The tanh is there again, so the gradient needs only x and what comes in."""

    def function(x: torch.Tensor) -> Any:
        return checkpoint(ACT2FN["gelu_new"], x, use_reentrant=False)

    _check(function, torch.randn(4, 8, requires_grad=True), names=["gelu", "gelu_backward"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.tanh(x) * x,
        lambda x: 30 * torch.tanh(x / 30),
        lambda x: torch.erf(x) + x,
        lambda x: torch.sigmoid(x.sin()) * x,
        lambda x: torch.sigmoid(x) * x.tanh(),
    ],
)
def test_others_are_no_near_misses(function: Function) -> None:
    assert _found(function, torch.randn(4, 8, requires_grad=True)) == []


@pytest.mark.parametrize("more", [lambda x: x * 1e-13 * 1e13, lambda x: x * math.nan, lambda x: x * math.inf, lambda x: x.long().float()])
def test_no_term_is_lost(more: Function) -> None:
    """What is small on the way, no number, or rounded to integers counts, too."""
    assert _names(lambda x: (0.5 * x + more(x)) * (1 + torch.erf(x / 2**0.5)), torch.randn(4, 8)) == []


def test_a_gradient_of_other_constants_says_why() -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.0447 * x**3)))

    reasons = {f.name: f.reason for f in _found(other, torch.randn(4, 8, requires_grad=True))}
    assert reasons.keys() == {"gelu", "gelu_backward"}
    assert "0.03566543987*x*x*x" in reasons["gelu"]
    assert "0.0534981598*g*x*x*x" in reasons["gelu_backward"]


@pytest.mark.parametrize(
    ("activation", "expected"),
    [("gelu_new", ["AwsNeuronGeluApprxTanh"]), ("gelu_python", ["AwsNeuronGelu"]), ("quick_gelu", [])],
)
def test_custom_calls(activation: str, expected: list[str]) -> None:
    """The sigmoid form has none, and is none of the others."""
    graph = make_fx(lambda x: (ACT2FN[activation](x),), decomposition_table=decomposition_table())(torch.randn(4, 8)).graph
    fuse(graph)
    module = schema.parse(emit(lower(graph, get_target("trn2")), custom_calls=True).proto)
    assert [i.custom_call_target for c in module.computations for i in c.instructions if i.opcode == "custom-call"] == expected


def _block(model: str) -> tuple[torch.nn.Module, torch.Tensor]:
    from transformers import CLIPVisionConfig, GPT2Config
    from transformers.models.clip.modeling_clip import CLIPEncoderLayer
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    if model == "gpt2":
        gpt2 = GPT2Config(n_embd=32, n_head=4, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager")
        return GPT2Block(gpt2, layer_idx=0), torch.randn(2, 6, 32)
    clip = CLIPVisionConfig(hidden_size=32, intermediate_size=64, num_attention_heads=4, attn_implementation="eager")
    return CLIPEncoderLayer(clip), torch.randn(2, 6, 32)


@pytest.mark.parametrize(("model", "name"), [("gpt2", "gelu"), ("clip", "quick_gelu")])
def test_blocks(model: str, name: str) -> None:
    block, x = _block(model)

    def function(x: torch.Tensor) -> torch.Tensor:
        result = block.to(x.dtype)(x, attention_mask=None)
        return result[0] if isinstance(result, tuple) else result

    names = ["attention", name, "layer_norm", "layer_norm"]
    with torch.no_grad():
        _check(function, x, names=names)
    _check(function, x.requires_grad_(), names=[*names, *(f"{n}_backward" for n in names)])


def test_a_layer_of_gpt2() -> None:
    """29 ops; 37 while its activation was plain ops."""
    from transformers import GPT2Config, GPT2Model

    def size(layers: int) -> int:
        model = GPT2Model(GPT2Config(n_embd=32, n_head=4, n_layer=layers, vocab_size=64, use_cache=False)).eval()
        return _top_level(neuron_dynamo.inspect(model, torch.zeros(1, 8, dtype=torch.long)).graphs[0])

    with torch.no_grad():
        assert size(2) - size(1) <= 30
