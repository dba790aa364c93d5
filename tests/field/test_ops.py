"""Field cases of the kind OPS: ops that other compilers could not lower, or lowered to wrong numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.field.check import check, check_gradients, compiled, host_ops

NAN, INF = torch.nan, torch.inf


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: 3,
        lambda x: (x + 1, 2.5),
        lambda x: x.any(),
        lambda x: x.any(1, keepdim=True),
        lambda x: torch.tensor([1.5, 2.0]),
        lambda x: x.new_tensor(7),
    ],
)
def test_constants_and_any(fn: Callable[[Tensor], Any]) -> None:
    """B055"""
    check(fn, torch.tensor([[0.0, 2], [0, 0]]), fullgraph=True)


@pytest.mark.parametrize("size", [(5, 7), (6, 8), (3, 3)])
def test_upsample(size: tuple[int, int]) -> None:
    """B055"""
    modes = ("nearest", "nearest-exact", "bilinear")
    check_gradients(lambda x: torch.stack([F.interpolate(x, size=size, mode=mode) for mode in modes]), torch.randn(1, 2, 3, 4))


def test_chunk_and_as_strided() -> None:
    """B057"""
    x = torch.randn(5, 6)
    check(lambda x: (*x.chunk(2), *x.chunk(4, 1), *x.tensor_split(3)), x)
    torch._dynamo.reset()
    check(lambda x: (x.as_strided((2, 3), (1, 6), 2) * 2, (x + 1).as_strided((4, 3), (6, 2))), x)


@pytest.mark.parametrize("masked", [False, True])
def test_multihead_attention(masked: bool) -> None:
    """B057"""
    attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    padding = torch.tensor([[False, False, True], [False, True, True]]) if masked else None

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return attention(x, x, x, key_padding_mask=padding)  # type: ignore[no-any-return]

    check(fn, torch.randn(2, 3, 32))


def test_index_put() -> None:
    """B059"""

    def fn(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
        x[i[:2]] = v[:2]
        x[:, i[:2]] += v[0, :2]
        x.index_put_((i, i), v[:, 0], accumulate=True)
        x[2, 1:3] = 0.5
        return x * 2

    check(fn, torch.randn(4, 4), torch.tensor([2, -1, 2]), torch.randn(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_topk_and_sort(dtype: torch.dtype) -> None:
    """B061"""
    x = (torch.randperm(48).reshape(6, 8) - 20).to(dtype)
    check(lambda x: (x.topk(5), x.topk(3, dim=-2, largest=False), x.topk(2, 0, sorted=True)), x)
    torch._dynamo.reset()
    ties = (torch.arange(48) % 5).reshape(6, 8).to(dtype)
    check(lambda x: (x.sort(descending=True, stable=True), x.sort(dim=-2, stable=True), torch.argsort(x, dim=0, stable=True)), ties)


def test_arange() -> None:
    """B063"""
    check(
        lambda x: (
            torch.arange(0, 1, 0.1),
            torch.arange(10, 0, -3),
            torch.arange(0, 5, 0.5),
            torch.arange(1, 2.5),
            torch.arange(3, dtype=torch.float64),
            torch.arange(2.0, 8, 2, dtype=torch.int32),
            torch.linspace(0, 1, 7) + x,
        ),
        torch.zeros(7),
    )


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("ceil", [False, True])
def test_pooling(size: int, ceil: bool) -> None:
    """B065"""

    def fn(x: Tensor) -> Tensor:
        averages = [F.avg_pool2d(x, 3, 2, 1, ceil_mode=ceil, count_include_pad=counted) for counted in (False, True)]
        return torch.stack([F.max_pool2d(x, 3, 2, 1, ceil_mode=ceil), *averages])

    check_gradients(fn, torch.randn(2, 3, size, size + 1))


def test_round_half_to_even() -> None:
    """B067"""
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388609.0, NAN, INF])
    result = check(lambda x: (x.round(), x.double().round(), x.bfloat16().round(), (x[:5] * 10.5).round(decimals=1)), x)
    assert result[0][:5].tolist() == [0, 2, 2, 0, -2] and torch.signbit(result[0][3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_nan_to_num(dtype: torch.dtype) -> None:
    """B069"""
    x = torch.tensor([NAN, INF, -INF, 1.5], dtype=dtype)
    check(lambda x: (x.nan_to_num(), x.nan_to_num(2.0), x.nan_to_num(posinf=3.0), x.nan_to_num(neginf=-1.0, nan=7.0)), x)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_of_rows(batch: int, training: bool) -> None:
    """B071"""
    norm = nn.BatchNorm1d(32).train(training)
    x = torch.randn(batch, 32)
    if batch == 1 and training:
        with pytest.raises(Exception, match="more than 1 value per channel"):
            compiled(norm)(x)
    else:
        torch.testing.assert_close(compiled(norm)(x), norm(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
def test_triangles(dtype: torch.dtype) -> None:
    """B073"""
    x = (torch.arange(30).reshape(2, 3, 5) % 7).to(dtype)
    check(lambda x: [part for d in (-3, -1, 0, 1, 4, 6) for part in (x.triu(d), x.tril(d))], x)


def test_triangles_cost_the_same() -> None:
    """B073"""
    import neuron_dynamo

    for fn in (torch.tril, torch.triu):
        torch._dynamo.reset()
        compiled(fn)(torch.randn(4, 5))
    lower, upper = (graph.stablehlo.count("stablehlo.") for graph in neuron_dynamo.reports())
    assert lower == upper


def test_encoder_layer() -> None:
    """B075: as of BERT, over embeddings with a mask; the model itself is in tests/models."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
    table = nn.Embedding(20, 16, padding_idx=0)
    parameters = [*layer.parameters(), *table.parameters()]

    def fn(ids: Tensor) -> Tensor:
        return layer(table(ids), src_key_padding_mask=ids == 0)  # type: ignore[no-any-return]

    ids = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]])
    grads = []
    for f in (fn, compiled(fn)):
        f(ids).square().mean(-1)[ids != 0].sum().backward()
        grads.append([p.grad.clone() for p in parameters])
        for p in parameters:
            p.grad = None
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-3, atol=1e-5)
    assert not host_ops()


def test_batch_norm_training_updates_statistics() -> None:
    """B077"""
    ours, theirs = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    f = compiled(ours)
    for _ in range(3):
        x = torch.randn(3, 4, 5, 5)
        results = []
        for g in (f, theirs):
            given = x.clone().requires_grad_()
            g(given).square().sum().backward()
            results.append(given.grad)
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    assert ours.num_batches_tracked == 3


def test_atoms_summed_into_molecules() -> None:
    """B079"""

    def fn(energy: Tensor, molecule: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        out = torch.zeros(3).index_add_(0, molecule, F.celu(energy, 0.1))
        rows, columns = torch.tril_indices(3, 3, -1)
        pairs = out[rows] * out[columns]
        return torch.cat([out, pairs, energy.masked_scatter(mask, source)])

    check_gradients(
        fn, torch.randn(6), torch.tensor([0, 2, 2, 1, 0, 2]), torch.tensor([True, False, True, True, False, False]), torch.randn(6)
    )


def test_number_of_selected_atoms_depends_on_data() -> None:
    """B079"""
    check(lambda x: (x > 0).nonzero().squeeze(1) + 1, torch.tensor([1.0, -1, 2]))
    assert host_ops() == []
