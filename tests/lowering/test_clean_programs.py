"""Programs hold what the mathematics needs and no more."""

from __future__ import annotations

import re

import pytest
import torch

import neuron_dynamo
from tests import golden


def _bert_base_layer() -> str:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    layer = BertLayer(BertConfig(attn_implementation="sdpa")).eval().requires_grad_(False)
    (graph,) = neuron_dynamo.inspect(layer, torch.randn(2, 128, 768)).graphs
    return graph.stablehlo


def test_bert_base_layer_has_at_most_110_ops() -> None:
    text = _bert_base_layer()
    count = len(re.findall(r"\bstablehlo\.\w+", text))
    # Reductions name their combiner in their own line: it is an op of their region.
    assert 60 < count <= 110, text


@pytest.mark.parametrize("name", golden.MODELS)
def test_clean(name: str) -> None:
    for file, text in golden.texts(name).items():
        assert not re.search("[x<]f64", text), file
        for function in text.split("func.func")[1:]:  # @main, and the decompositions of composites
            _check_function(file, function)


def _check_function(file: str, text: str) -> None:
    assert not re.search(r"stablehlo\.constant dense<[^\[>]+> : tensor<\d", text), f"{file}: a splat constant of full shape"
    ones = re.findall(r"(%\w+) = stablehlo\.constant dense<1\.0+e\+00> : tensor<\w+>", text)
    spread = [m for one in ones for m in re.findall(rf"(%\w+) = stablehlo\.broadcast_in_dim {one},", text)]
    for one in [*ones, *spread]:
        assert not re.search(rf"stablehlo\.multiply [^:\n]*{one}\b", text), f"{file}: a multiply by one"
    bodies = re.findall(r"%\w+(?::\d+)? = (stablehlo\.[^\n]+)", text)
    plain = [body for body in bodies if not body.endswith(("{", "({"))]
    assert len(plain) == len(set(plain)), f"{file}: an op occurs twice"
    for value in re.findall(r"(%\w+)(?::\d+)? = ", text):
        assert len(re.findall(rf"{value}\b", text)) > 1, f"{file}: {value} is never read"
