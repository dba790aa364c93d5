"""The fused inference layers of torch.nn's transformers against eager's kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuron_dynamo.lowering import registry
from tests.lowering.opcheck import check, trace

aten = torch.ops.aten
WIDTH, HEADS, BATCH, STEPS = 8, 2, 3, 5


def _mask(kind: int | None, whole_rows: bool = False) -> Tensor | None:
    """A mask of that mask_type; `whole_rows` leaves no key to some queries."""
    if kind is None:
        return None
    shape = {0: (STEPS, STEPS), 1: (BATCH, STEPS), 2: (BATCH, HEADS, STEPS, STEPS)}[kind]
    mask = torch.rand(shape) < 0.4
    mask[..., 0] = False
    if whole_rows:
        mask[1] = True
    return mask


def _attention_parameters() -> list[Tensor]:
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    nn.init.normal_(layer.in_proj_bias)
    nn.init.normal_(layer.out_proj.bias)
    return [p.detach() for p in (layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias)]


def _encoder_arguments(layer: nn.TransformerEncoderLayer) -> tuple[Any, ...]:
    attention, norms = layer.self_attn, (layer.norm1, layer.norm2)
    return (
        *(attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias),
        *(layer.activation_relu_or_gelu == 2, layer.norm_first, layer.norm1.eps),
        *(p for norm in norms for p in (norm.weight, norm.bias)),
        *(p for linear in (layer.linear1, layer.linear2) for p in (linear.weight, linear.bias)),
    )


@pytest.mark.parametrize(("kind", "whole_rows"), [(None, False), (0, False), (1, False), (2, False), (0, True), (1, True), (2, True)])
@pytest.mark.parametrize(("activation", "norm_first"), [("relu", False), ("gelu", True)])
def test_encoder_layer(activation: str, norm_first: bool, kind: int | None, whole_rows: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, activation=activation, norm_first=norm_first, batch_first=True)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    mask = _mask(kind, whole_rows)
    src = torch.randn(BATCH, STEPS, WIDTH)

    def fn(x: Tensor, arguments: tuple[Any, ...], mask: Tensor | None) -> Tensor:
        return aten._transformer_encoder_layer_fwd.default(x, WIDTH, HEADS, *arguments, mask, kind)

    arguments = _encoder_arguments(layer)
    with torch.no_grad():
        assert bool(fn(src, arguments, mask).isnan().any()) == whole_rows
        check(fn, src, arguments, mask, rtol=1e-5, atol=1e-5)


def test_encoder_layer_in_bfloat16() -> None:
    """No further from float64 than eager's own kernel."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True).bfloat16().eval()
    src, mask = torch.randn(BATCH, STEPS, WIDTH).bfloat16(), _mask(1)

    def fn(x: Tensor, arguments: tuple[Any, ...], mask: Tensor | None) -> Tensor:
        return aten._transformer_encoder_layer_fwd.default(x, WIDTH, HEADS, *arguments, mask, 1)

    with torch.no_grad():
        eager = fn(src, _encoder_arguments(layer), mask)
        ours = torch.compile(layer, backend="neuron")(src, src_key_padding_mask=mask)
        exact = fn(src.double(), _encoder_arguments(layer.double()), mask)
    error = lambda result: float((result.double() - exact).norm() / exact.norm())  # noqa: E731
    assert ours.dtype == torch.bfloat16
    assert error(ours) < max(1.5 * error(eager), 4e-3)


def test_float_mask_is_read_as_bool() -> None:
    """The fused op leaves out what is not zero, where the unfused one would add it."""
    torch.manual_seed(0)
    x, weights = torch.randn(BATCH, STEPS, WIDTH), _attention_parameters()
    mask = torch.zeros(STEPS, STEPS).masked_fill(_mask(0), 0.25)
    mask[1, 2] = -math.inf

    def fn(x: Tensor, mask: Tensor, *weights: Tensor) -> Any:
        return aten._native_multi_head_attention.default(x, x, x, WIDTH, HEADS, *weights, mask, True, True, 0)

    check(fn, x, mask, *weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("same", "kind"), [("all", None), ("all", 0), ("all", 1), ("all", 2), ("key and value", 1), ("none", 2)])
def test_attention_with_weights(same: str, kind: int | None) -> None:
    torch.manual_seed(0)
    query = torch.randn(BATCH, STEPS, WIDTH)
    key = query if same == "all" else torch.randn(BATCH, STEPS, WIDTH)
    value = torch.randn(BATCH, STEPS, WIDTH) if same == "none" else key
    inputs = {"all": (query,), "key and value": (query, key), "none": (query, key, value)}[same]

    def fn(inputs: tuple[Tensor, ...], mask: Tensor | None, *weights: Tensor) -> Any:
        query, key, value = (*inputs, inputs[-1], inputs[-1])[:3]
        attend = aten._native_multi_head_attention.default
        return [attend(query, key, value, WIDTH, HEADS, *weights, mask, True, average, kind) for average in (True, False)]

    check(fn, inputs, _mask(kind), *_attention_parameters(), rtol=1e-5, atol=1e-5)


def test_attention_without_weights() -> None:
    torch.manual_seed(0)

    def fn(x: Tensor, *weights: Tensor) -> Any:
        return aten._native_multi_head_attention.default(x, x, x, WIDTH, HEADS, *weights, None, False)[0]

    check(fn, torch.randn(BATCH, STEPS, WIDTH), *_attention_parameters(), rtol=1e-5, atol=1e-5)


def test_every_op_has_a_rule() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, activation="gelu", batch_first=True).requires_grad_(False)
    arguments = _encoder_arguments(layer)

    def fn(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        masked, unmasked = (mask, 1), ()
        return tuple(aten._transformer_encoder_layer_fwd.default(x, WIDTH, HEADS, *arguments, *last) for last in (masked, unmasked))

    graph = trace(fn, [torch.randn(BATCH, STEPS, WIDTH), torch.rand(BATCH, STEPS) < 0.3]).graph
    targets = {node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    assert {aten._softmax.default, aten._scaled_dot_product_flash_attention_for_cpu.default} <= targets
    assert {target for target in targets if registry.find(target) is None} == set()


def test_encoder_with_padding_agrees_where_nothing_is_padded() -> None:
    """Eager packs the batch into a nested tensor and gives zeros for padding; Dynamo's graph computes the padded places too."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True), 2, enable_nested_tensor=True).eval()
    src, padding = torch.randn(BATCH, STEPS, WIDTH), torch.arange(STEPS) >= torch.tensor([[5], [3], [1]])
    with torch.no_grad():
        expected = encoder(src, src_key_padding_mask=padding)
        actual = torch.compile(encoder, backend="neuron")(src, src_key_padding_mask=padding)
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual[~padding], expected[~padding], rtol=1e-5, atol=1e-5)
