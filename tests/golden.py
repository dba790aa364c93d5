"""Golden StableHLO: what three models lower to, kept as readable text in tests/golden_hlo and reviewed like code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import neuron_dynamo

DIRECTORY = Path(__file__).parent / "golden_hlo"


def mlp() -> tuple[Any, tuple[Any, ...]]:
    """Two linear layers with GELU."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    return model, (torch.randn(4, 16),)


def bert_layer() -> tuple[Any, tuple[Any, ...]]:
    """One BERT layer (transformers), in eval mode so that no dropout is left."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(hidden_size=32, num_attention_heads=4, intermediate_size=64, attn_implementation="sdpa")
    return BertLayer(config).eval(), (torch.randn(2, 8, 32),)


def residual_block() -> tuple[Any, tuple[Any, ...]]:
    """A residual block of convolution, BatchNorm in train mode and ReLU, pooled to a vector."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.norm = torch.nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.adaptive_avg_pool2d(torch.relu(self.norm(self.first(x)) + x), 1).flatten(1)

    return Block(), (torch.randn(2, 4, 6, 6),)


MODELS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {"mlp": mlp, "bert_layer": bert_layer, "residual_block": residual_block}


def texts(name: str) -> dict[str, str]:
    """File name -> StableHLO text, for the forward and the backward graph of a model."""
    model, args = MODELS[name]()
    found = neuron_dynamo.inspect(model, *args).graphs
    return {f"{name}.{graph.kind}.mlir": graph.stablehlo for graph in found}
