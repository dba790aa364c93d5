"""Models of the benchmark: seeded, f32, sized so that one step is tens of milliseconds to a second on two cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Workload:
    """A module in training mode, the arguments of a call, and the scalar loss of its output; `size` describes it in a table."""

    module: nn.Module
    args: tuple[Any, ...]
    loss: Loss
    size: str


def logits_loss(out: Any) -> Tensor:
    """Mean square of the logits: cheap, so that the model and not the loss is what is timed."""
    return (out if isinstance(out, Tensor) else out.logits).pow(2).mean()


def mlp() -> Workload:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(512, 512), nn.GELU()]
    return Workload(nn.Sequential(*layers), (torch.randn(64, 512),), logits_loss, "4 x 512, batch 64")


def resnet() -> Workload:
    from tests.models.plain import ResNet

    module = ResNet(widths=(64, 128, 256, 512), blocks=2, classes=1000)
    return Workload(module, (torch.randn(8, 3, 128, 128),), logits_loss, "ResNet-18, 8x3x128x128")


def bert() -> Workload:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(num_hidden_layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ids = torch.randint(config.vocab_size, (2, 128))
    return Workload(BertForMaskedLM(config), (ids,), logits_loss, "BERT-base width, 4 layers, 2x128")


def llama() -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    return Workload(LlamaForCausalLM(config), (torch.randint(8000, (2, 128)),), logits_loss, "width 512, 4 layers, 2x128")


def gpt2() -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=8000,
        n_embd=512,
        n_layer=4,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Workload(GPT2LMHeadModel(config), (torch.randint(8000, (2, 128)),), logits_loss, "width 512, 4 layers, 2x128")


def vit() -> Workload:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536, image_size=112)
    return Workload(ViTForImageClassification(config), (torch.randn(4, 3, 112, 112),), logits_loss, "ViT-S width, 4 layers, 4x3x112x112")


MODELS: dict[str, Callable[[], Workload]] = {"mlp": mlp, "resnet": resnet, "bert": bert, "llama": llama, "gpt2": gpt2, "vit": vit}


def build(name: str) -> Workload:
    """The named workload, equal in every process."""
    torch.manual_seed(0)
    return MODELS[name]()
