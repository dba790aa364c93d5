"""Decoding with transformers' StaticCache, whose key and value buffers the compiled graph updates in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch._dynamo.utils import counters

from tests.models import zoo
from tests.models.compare import compiler

STEPS = 5


@torch.no_grad()
def decode(compile_with: Callable[[Any], Any] | None, compile_prefill: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Greedy tokens (batch, STEPS), the logits of every step (batch, STEPS, vocabulary) and the cache's tensors at the end."""
    module = zoo.build("llama").module.eval()
    cache = transformers.StaticCache(config=module.config, max_cache_len=16)
    prompt = torch.arange(3, 15).reshape(2, 6)
    forward = compile_with(module) if compile_with else module
    out = (forward if compile_prefill else module)(prompt, cache=cache, use_cache=True)
    logits, tokens = [], []
    for _ in range(STEPS):
        logits.append(out.logits[:, -1])
        tokens.append(logits[-1].argmax(-1, keepdim=True))
        out = forward(tokens[-1], cache=cache, use_cache=True)
    held = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values, layer.cumulative_length)]
    return torch.cat(tokens, 1), torch.stack(logits, 1), held


@pytest.mark.parametrize("compile_prefill", [False, True], ids=["eager prefill", "compiled prefill"])
def test_static_cache_decode(compile_prefill: bool) -> None:
    torch._dynamo.reset()
    counters.clear()
    tokens, logits, held = decode(None, compile_prefill)
    got_tokens, got_logits, got_held = decode(compiler(), compile_prefill)
    assert torch.equal(got_tokens, tokens)
    assert len(tokens.unique()) > 2
    torch.testing.assert_close(got_logits, logits)
    torch.testing.assert_close(got_held, held)
    assert int(held[2]) == 6 + STEPS
    assert counters["stats"]["unique_graphs"] == 1 + compile_prefill  # one graph serves every step
