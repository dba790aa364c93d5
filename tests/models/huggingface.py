"""Zoo models from `transformers`: the stock classes with small random-init configurations; nothing is downloaded.

The initial scale is larger than the stock 0.02, so that attention is not nearly uniform and an error in it shows in the output.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

from tests.models.zoo import ZooModel, register

VOCABULARY = 61
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tokens(batch: int = 2, length: int = 10) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def causal_lm(name: str, module: torch.nn.Module, **rest: Any) -> ZooModel:
    """A decoder called with tokens of which the first row is padded on the left, and labels."""
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    labels = ids.masked_fill(mask == 0, -100)
    return ZooModel(name, module, (ids,), {"attention_mask": mask, "labels": labels, "use_cache": False}, **rest)


@register
def bert(name: str) -> ZooModel:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    inputs = {"attention_mask": mask, "token_type_ids": (torch.arange(10) > 4).long().expand(2, 10), "labels": ids.flip(1)}
    return ZooModel(name, transformers.BertForMaskedLM(config), (ids,), inputs, random=True)


@register
def gpt2(name: str) -> ZooModel:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=32, initializer_range=0.2, bos_token_id=1, eos_token_id=2
    )
    note = (
        "With labels and no config.loss_type the model logs a warning, at which Dynamo breaks the graph: set "
        'config.loss_type = "ForCausalLM", or torch._dynamo.config.ignore_logging_functions.'
    )
    return causal_lm(name, transformers.GPT2LMHeadModel(config), random=True, graphs=2, notes=note)


def llama_config(**changes: Any) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(**{**DECODER, **changes})


@register
def llama(name: str) -> ZooModel:
    return causal_lm(name, transformers.LlamaForCausalLM(llama_config()))


@register
def qwen3(name: str) -> ZooModel:
    return causal_lm(name, transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**{**DECODER, "num_hidden_layers": 1}, head_dim=8)))


@register
def gemma3(name: str) -> ZooModel:
    """One layer with a sliding window shorter than the sequence and one with full attention."""
    config = transformers.Gemma3TextConfig(
        **DECODER, head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8
    )
    return causal_lm(name, transformers.Gemma3ForCausalLM(config))


@register
def mixtral(name: str) -> ZooModel:
    config = transformers.MixtralConfig(**{**DECODER, "num_hidden_layers": 1}, num_local_experts=4, num_experts_per_tok=2)
    return causal_lm(name, transformers.MixtralForCausalLM(config))


@register
def t5(name: str) -> ZooModel:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=1,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    inputs = {"attention_mask": mask, "labels": tokens(2, 6), "use_cache": False}
    return ZooModel(name, transformers.T5ForConditionalGeneration(config), (tokens(),), inputs, random=True)


@register
def whisper(name: str) -> ZooModel:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=12,
        max_target_positions=16,
        init_std=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    inputs = {"labels": tokens(2, 6), "use_cache": False}
    return ZooModel(name, transformers.WhisperForConditionalGeneration(config), (torch.randn(2, 8, 24),), inputs)


@register
def vit(name: str) -> ZooModel:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
        num_labels=5,
        initializer_range=0.2,
    )
    return ZooModel(name, transformers.ViTForImageClassification(config), (torch.randn(2, 3, 16, 16),), {"labels": torch.tensor([1, 4])})


@register
def clip(name: str) -> ZooModel:
    shared = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "projection_dim": 16}
    text = {**shared, "vocab_size": VOCABULARY, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 60, "pad_token_id": 0}
    vision = {**shared, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16, initializer_factor=8.0)
    ids = torch.randint(3, 60, (3, 9))
    ids[0, 5], ids[1, 8], ids[2, 7] = 60, 60, 60  # the end token is where the text's embedding is read
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    inputs = {"input_ids": ids, "pixel_values": torch.randn(3, 3, 16, 16), "attention_mask": mask, "return_loss": True}
    return ZooModel(name, transformers.CLIPModel(config), (), inputs)


@register
def mamba(name: str) -> ZooModel:
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        state_size=4,
        num_hidden_layers=1,
        time_step_rank=4,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    ids = tokens(2, 5)
    return ZooModel(name, transformers.MambaForCausalLM(config), (ids,), {"labels": ids, "use_cache": False})
