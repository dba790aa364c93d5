"""Fusions: which forms match, that composites change no number, and that programs shrink."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import neuron_dynamo
from neuron_dynamo.lowering.reading import functions
from neuron_dynamo.report import FusionReport

Function = Callable[..., Any]
ROOT = math.sqrt(2 / math.pi)


def _found(function: Function, *args: Any) -> list[FusionReport]:
    return [fusion for graph in neuron_dynamo.inspect(function, *args).graphs for fusion in graph.fusions]


def _names(function: Function, *args: Any) -> list[str]:
    return sorted(fusion.name for fusion in _found(function, *args) if fusion.nodes)


def _run(function: Function, args: tuple[torch.Tensor, ...], fusions: str, **options: str) -> list[torch.Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(3)
    given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    result = torch.compile(function, backend="neuron", options={"fusions": fusions, **options})(*given) if fusions else function(*given)
    wanted = [a for a in given if a.requires_grad]
    return [result, *(torch.autograd.grad(result.sum(), wanted) if wanted else ())]


def _check(function: Function, *args: torch.Tensor, names: list[str], atol: float | None = None) -> None:
    """The graphs have just these fusions; on equals off bit for bit, and both equal eager and, for float32, eager in float64."""
    assert _names(function, *args) == sorted(names)
    on, off, eager = (_run(function, args, how) for how in ("on", "off", ""))
    for fused, plain, expected in zip(on, off, eager, strict=True):
        assert torch.equal(fused, plain)
        torch.testing.assert_close(fused, expected, atol=atol, rtol=0.016 if atol else None)
    if all(a.dtype == torch.float32 for a in args):
        exact = _run(function, tuple(a.detach().double().requires_grad_(a.requires_grad) for a in args), "")
        for fused, wide in zip(on, exact, strict=True):
            torch.testing.assert_close(fused, wide.float())


def _llama_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def _gemma_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
    return (wide * (1.0 + weight.float())).type_as(x)


@pytest.mark.parametrize("norm", [_llama_norm, _gemma_norm, lambda x, w: F.rms_norm(x, (8,), w, 1e-5)], ids=["llama", "gemma", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(norm: Function, dtype: torch.dtype) -> None:
    _check(norm, torch.randn(2, 3, 8, dtype=dtype), torch.randn(8, dtype=dtype), names=["rms_norm"])


@pytest.mark.parametrize("norm", [_llama_norm, _gemma_norm], ids=["llama", "gemma"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_in_training(norm: Function, dtype: torch.dtype) -> None:
    """Its root, which the backward reads, is a second result."""
    x, weight = torch.randn(2, 3, 8, dtype=dtype, requires_grad=True), torch.randn(8, dtype=dtype, requires_grad=True)
    _check(norm, x, weight, names=["rms_norm"])


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def test_rotary_embedding() -> None:
    def rotate(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return q * cos.unsqueeze(1) + _half_turned(q) * sin.unsqueeze(1)

    _check(rotate, torch.randn(2, 3, 5, 8, requires_grad=True), torch.randn(2, 5, 8), torch.randn(2, 5, 8), names=["rotary_embedding"])


def test_gated_units() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.silu(x) * y + y * F.gelu(x, approximate="tanh")

    _check(both, torch.randn(3, 8), torch.randn(3, 8), names=["swiglu", "geglu"])


def test_cross_entropy() -> None:
    target = torch.tensor([1, -100, 3])
    _check(lambda x: F.cross_entropy(x, target), torch.randn(3, 5, requires_grad=True), names=["cross_entropy", "cross_entropy_backward"])


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / 8**0.5 + mask
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def _qkv(dtype: torch.dtype = torch.float32, grad: bool = False) -> list[torch.Tensor]:
    return [torch.randn(2, 3, 4, 8, dtype=dtype, requires_grad=grad) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_written_out(dtype: torch.dtype) -> None:
    mask = torch.zeros(4, 4, dtype=dtype).masked_fill(torch.ones(4, 4).triu(1).bool(), -1e4)
    _check(lambda q, k, v: _attention(q, k, v, mask), *_qkv(dtype, grad=True), names=["attention", "attention_backward"])


@pytest.mark.parametrize("form", ["causal", "bool mask", "bias", "grouped"])
def test_sdpa(form: str) -> None:
    q, k, v = _qkv(grad=True)
    if form == "grouped":
        k, v = (t[:, :1].detach().requires_grad_() for t in (k, v))
    mask = {"bool mask": torch.ones(4, 4).tril().bool(), "bias": torch.randn(4, 4)}.get(form)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=form == "causal", enable_gqa=form == "grouped")

    _check(attention, q, k, v, names=["attention", "attention_backward"])


@pytest.mark.parametrize("rng", ["graph", "eager"])
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_with_dropout(rng: str, causal: bool) -> None:
    """A composite drops what its ops would have; under rng="eager" that is what eager drops."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=causal)

    args = tuple(_qkv(grad=True))
    assert _names(attention, *args) == ["attention", "attention_backward"]
    on, off = (_run(attention, args, how, rng=rng) for how in ("on", "off"))
    assert [torch.equal(fused, plain) for fused, plain in zip(on, off, strict=True)] == [True] * 4
    if rng == "eager":
        torch.testing.assert_close(on, _run(attention, args, ""))
    assert not torch.allclose(on[0], F.scaled_dot_product_attention(*args, is_causal=causal))


def test_whole_ops() -> None:
    table, rows = torch.randn(9, 8, requires_grad=True), torch.tensor([[1, 2], [3, 1]])

    def everything(table: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(F.embedding(rows, table), (8,), eps=1e-5)
        x = F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x)
        return torch.softmax(x, -1) + torch.log_softmax(x, 1) + torch.topk(x, 3).values.sum()

    backward = ["embedding_backward", "layer_norm_backward", "gelu_backward", "gelu_backward", "silu_backward", "softmax_backward"]
    forward = ["embedding", "layer_norm", "gelu", "gelu", "silu", "softmax", "log_softmax", "topk"]
    _check(everything, table, names=[*forward, *backward, "log_softmax_backward"])


@pytest.mark.parametrize(
    ("function", "name", "reason"),
    [
        (lambda x: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6), "rms_norm", "no mean over the last dim"),
        (lambda x: x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-6), "rms_norm", "no square"),
        (lambda x: (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), "rms_norm", "something else"),
        (lambda x: torch.cat((-x[:, 3:], x[:, :3]), -1) * x + x * 2, "rotary_embedding", "not the halves"),
        (lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))), "gelu", "is the tanh of 0.8*x + "),
        (lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.0447 * x**3))), "gelu", "is the tanh of 0.7978845608*x + "),
        (lambda x: x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3))), "gelu", "ends in 1*x + 1*t*x, not in 0.5*x + 0.5*t*x"),
        (lambda x: torch.tanh(ROOT * (x + 0.044715 * x**3)).exp(), "gelu", "ends in something else"),
        (lambda x: x.abs() * 0.5 * (1 + torch.erf(x / 2**0.5)), "gelu", "ends in something else"),
        (lambda x: x * 0.5 * (1 + torch.erf(x / 1.4)), "gelu", "is the erf of 0.7142857143*x, not of 0.7071067812*x"),
        (lambda x: x * torch.sigmoid(1.7 * x), "quick_gelu", "is the sigmoid of 1.7*x, not of 1.702*x"),
        (lambda x: torch.softmax(x.exp(), -1) @ x, "attention", "the scores are no matrix product"),
        (lambda x: torch.softmax(x @ x.T, -1).sum(), "attention", "do not go into a matrix product"),
    ],
)
def test_near_misses_say_why(function: Function, name: str, reason: str) -> None:
    misses = [fusion for fusion in _found(function, torch.randn(8, 8)) if not fusion.nodes and fusion.name == name]
    assert [reason in miss.reason for miss in misses] == [True]
    assert misses[0].source is not None
    assert misses[0].source.file == __file__


def test_a_result_read_between_keeps_the_region_whole() -> None:
    """Part of a match feeds something that feeds the rest: no single op could compute that."""

    def crossed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (weight + root.sum()) * (x * root)

    (fusion,) = (f for f in _found(crossed, torch.randn(2, 8), torch.randn(8)) if f.name == "rms_norm")
    assert "stands between" in fusion.reason
    _check(crossed, torch.randn(2, 8), torch.randn(8), names=[])


def _top_level(graph: neuron_dynamo.GraphReport) -> int:
    (program,) = graph.programs
    return len(functions(program.program)["main"].operations)


@pytest.mark.parametrize("model", ["bert", "llama"])
def test_a_layer_has_at_most_60_ops(model: str) -> None:
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    def build(layers: int) -> torch.nn.Module:
        if model == "bert":
            small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 64}
            return BertModel(BertConfig(num_hidden_layers=layers, **small)).eval()
        small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
        return LlamaModel(LlamaConfig(num_hidden_layers=layers, **small)).eval()

    with torch.no_grad():
        sizes = [_top_level(neuron_dynamo.inspect(build(n), torch.zeros(1, 16, dtype=torch.long)).graphs[0]) for n in (1, 2)]
    assert sizes[1] - sizes[0] <= 60


def test_layers_share_their_decompositions() -> None:
    def norms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _llama_norm(_llama_norm(_llama_norm(x, weight) + 1, weight), weight)

    (graph,) = neuron_dynamo.inspect(norms, torch.randn(2, 8), torch.randn(8)).graphs
    assert graph.stablehlo.count('composite "neuron_dynamo.rms_norm"') == 3
    assert graph.stablehlo.count("func.func private") == 1
