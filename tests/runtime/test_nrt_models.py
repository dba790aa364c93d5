"""Whole models through the doubles of neuronx-cc and libnrt: HLO, NEFF, device tensors and back, the same numbers bit for bit.

The numbers to compare with are those of target `host`, and of the same programs for trn2 run on the host. Nothing here ran on a Neuron
device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import neuron_dynamo
from tests.doubles.install import install_compiler
from tests.doubles.libnrt import Double, as_in_a_new_process, c_compiler

pytestmark = [
    pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc, clang): the libnrt double cannot be built"),
    pytest.mark.filterwarnings("ignore::neuron_dynamo.errors.NoDeviceWarning"),
]

SIZES: dict[str, Any] = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
STEPS = 20
GPT2 = transformers.GPT2Config(**SIZES, n_embd=32, n_layer=1, n_head=2, n_positions=32, initializer_range=0.2)


@pytest.fixture
def lib(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    for name in [name for name in os.environ if name.startswith(("NEURON_RT_", "NEURON_LOGICAL", "NEURON_CC", "NEURON_PLATFORM"))]:
        monkeypatch.delenv(name)
    with as_in_a_new_process() as lib:
        yield lib


@pytest.fixture(scope="module")
def neuronx_cc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_compiler(tmp_path_factory.mktemp("neuronx"))


def on_host_and_device(run: Callable[[Callable[[Any], Any]], Any], lib: Double, neuronx_cc: Path) -> tuple[Any, Any, Any]:
    """What `run` returns for target host, with a compiler for trn2 whose programs run on the host, and with one whose programs run on
    the double."""
    trn2 = {"target": "trn2", "compiler": str(neuronx_cc)}
    ways = ({"target": "host"}, {**trn2, "libnrt": "/nowhere/libnrt.so.1"}, {**trn2, "libnrt": lib.path})
    results, levels = [], []
    for way in ways:
        torch._dynamo.reset()
        before = len(neuron_dynamo.reports())
        results.append(run(lambda what, way=way: torch.compile(what, backend="neuron", options={**way, "fallback": "error"})))
        levels.append({graph.cache for graph in neuron_dynamo.reports()[before:]})
        assert (lib.calls("nrt_execute") > 0) == (way.get("libnrt") == lib.path)
    assert levels[:2] == [{"miss"}] * 2 and levels[2] and "miss" not in levels[2], "the device's are the emulated ones, from the cache"
    return results[0], results[1], results[2]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def train(compile_with: Callable[[Any], Any]) -> tuple[list[float], list[Tensor]]:
    """Losses and parameters of STEPS steps of a Llama of 2 layers, hidden size 64."""
    torch.manual_seed(0)
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**SIZES, **heads, hidden_size=64, intermediate_size=96, max_position_embeddings=32, use_cache=False)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    forward = compile_with(model)
    tokens = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(STEPS):
        loss = forward(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [parameter.detach() for parameter in model.parameters()]


def test_llama_training(lib: Double, neuronx_cc: Path) -> None:
    (losses, parameters), *others = on_host_and_device(train, lib, neuronx_cc)
    assert losses[-1] < 0.5 * losses[0], "it learns, so the comparison means something"
    for other_losses, other_parameters in others:
        assert other_losses == losses and same(other_parameters, parameters)
    assert lib.calls("nrt_execute") == 2 * STEPS and lib.calls("nrt_load") == 2


@torch.no_grad()
def generate(compile_with: Callable[[Any], Any]) -> tuple[list[int], list[Tensor]]:
    """Greedy tokens of a GPT-2 and its key and value tensors at the end, which the compiled graph writes in place."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(GPT2).eval()
    cache = transformers.StaticCache(config=GPT2, max_cache_len=16)
    out = model(torch.arange(3, 9).reshape(1, 6), cache=cache, use_cache=True)
    forward = compile_with(model)
    tokens: list[int] = []
    for _ in range(8):
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        tokens.append(int(token))
        out = forward(token, cache=cache, use_cache=True)
    return tokens, [out.logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))]


def test_gpt2_generation(lib: Double, neuronx_cc: Path) -> None:
    (tokens, state), *others = on_host_and_device(generate, lib, neuronx_cc)
    assert len(set(tokens)) > 2
    for other_tokens, other_state in others:
        assert other_tokens == tokens and same(other_state, state)
    assert lib.calls("nrt_execute") == 8
    weights = sum(parameter.nbytes for parameter in transformers.GPT2LMHeadModel(GPT2).parameters())
    # Each weight goes out twice (the second time it is remembered), then stays; all else of the 8 calls is small.
    assert 2 * weights <= lib.bytes_written < 4 * weights


def test_a_graph_that_only_hands_an_input_on(lib: Double, neuronx_cc: Path) -> None:
    """Its program's root is a copy: one parameter cannot be named as an input and an output."""

    def run(compile_with: Callable[[Any], Any]) -> list[Tensor]:
        forward = compile_with(lambda y: torch.cat([torch.empty(0, 4), y]))
        return [forward(torch.arange(8.0).reshape(2, 4) + step) for step in range(3)]

    for result in on_host_and_device(run, lib, neuronx_cc):
        assert same(result, [torch.arange(8.0).reshape(2, 4) + step for step in range(3)])
    assert lib.calls("nrt_execute") == 3
