"""Field cases of the kind NUMERICS: silently wrong or drifting numbers. Where eager itself rounds, float64 is the judge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.field.check import check, check_gradients, compiled, host_ops


def error(x: Tensor, truth: Tensor) -> float:
    return float((x.double() - truth).abs().max())


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_a_round_trip_rounds(low: torch.dtype) -> None:
    """B095"""
    x = torch.randn(1000)
    result = check(lambda x: (x.to(low).float(), x.to(low).double().float(), (x.to(low) * 1).float()), x, rtol=0, atol=0)
    assert not torch.equal(result[0], x)


def test_rotary_embedding_in_bfloat16() -> None:
    """B097"""

    def rotate_half(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    q = torch.randn(2, 4, 16, 32, dtype=torch.bfloat16)
    angle = torch.outer(torch.arange(16.0), torch.arange(32) / 7)
    check(lambda q, c, s: q * c + rotate_half(q) * s, q, angle.cos().bfloat16(), angle.sin().bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("width", [64, 4096])
def test_rms_norm_in_bfloat16(width: int) -> None:
    """B099: no farther from float64 than eager."""
    x, w = torch.randn(4, width, dtype=torch.bfloat16), torch.rand(width, dtype=torch.bfloat16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), w, 1e-6)

    truth = fn(x.double(), w.double())
    assert error(compiled(fn)(x, w), truth) <= error(fn(x, w), truth)


@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_instance_norm_of_a_large_image(mean: float) -> None:
    """B101: no farther from float64 than twice eager, whatever the mean."""
    norm = nn.InstanceNorm2d(3)
    x = torch.randn(1, 3, 512, 512) + mean
    truth = norm(x.double())
    assert error(compiled(norm)(x), truth) <= 2 * error(norm(x), truth) + 1e-6


def test_attention_over_a_convolution() -> None:
    """B103: a block as of a detector: 1x1 convolution to q, k, v, softmax over 400 positions, convolution of v added."""
    qkv, position, out = nn.Conv2d(32, 64, 1), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 32, 1)

    def fn(x: Tensor) -> Tensor:
        q, k, v = qkv(x).view(1, 2, 32, 400).split([8, 8, 16], 2)
        attention = ((q.transpose(-2, -1) @ k) * 8**-0.5).softmax(-1)
        y = (v @ attention.transpose(-2, -1)).reshape(1, 32, 20, 20) + position(v.reshape(1, 32, 20, 20))
        return out(y)

    with torch.no_grad():
        x = torch.randn(1, 32, 20, 20)
        actual = check(fn, x, rtol=1e-4, atol=1e-5)
        expected = fn(x)
    assert F.cosine_similarity(actual.flatten(), expected.flatten(), 0) > 0.999999
    assert torch.equal(actual.flatten().topk(20).indices, expected.flatten().topk(20).indices)


@pytest.mark.parametrize("training", [False, True])
def test_convolution_block_with_relu_in_place(training: bool) -> None:
    """B105"""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu_(self.norm1(self.conv1(x)))
            x = F.relu_(self.norm2(self.conv2(x)))
            return F.avg_pool2d(x, (2, 2)) + F.max_pool2d(x, 2)

    block = Block().train(training)
    for norm in (block.norm1, block.norm2):
        norm.running_mean.uniform_(-0.1, 0.1)
        norm.running_var.uniform_(0.5, 1.5)
    check_gradients(block, torch.randn(2, 1, 10, 8), rtol=1e-3, atol=1e-4)


def test_matrix_products_stay_in_float32() -> None:
    """B107: no silent cast to bf16; the report's program shows none."""
    import neuron_dynamo

    a, b = torch.randn(64, 256), torch.randn(256, 64)
    truth = a.double() @ b.double()
    assert error(compiled(torch.mm)(a, b), truth) < 1e-4 < 1e-1 < error(a.bfloat16() @ b.bfloat16(), truth)
    (graph,) = neuron_dynamo.reports()
    assert "bf16" not in graph.stablehlo and "f32" in graph.stablehlo


TIES = torch.tensor([[1.0, 1, 1], [3, 2, 3], [0, 0, 5]])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cummax(x, 1),
        lambda x: torch.cummin(x, 0),
        lambda x: (x.max(1), x.min(1), x.argmax(1), x.argmin(0), x.argmax()),
        lambda x: (x.sort(dim=1, stable=True), x.sort(dim=1, descending=True, stable=True)),
        lambda x: (x.median(1).values, x.mode(1), x.amax(1)),
    ],
)
def test_ties(fn: Callable[[Tensor], object]) -> None:
    """B109"""
    check(fn, TIES)


def test_gradients_at_ties() -> None:
    """B109"""
    check_gradients(lambda x: torch.cat([x.amax(1), x.max(1).values, x.cummax(1).values[:, 2], x.amin(0), x.max()[None]]), TIES)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8])
def test_argmax_of_bool_and_bytes(dtype: torch.dtype) -> None:
    """B111"""
    x = torch.tensor([[0, 0, 0, 0, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]).to(dtype)
    result = check(lambda x: (x.max(1), x.min(1), x.max(0)), x)
    assert result[0].indices[0] == 4
    if dtype != torch.bool:
        torch._dynamo.reset()
        check(lambda x: (x.argmax(1), x.argmin(1)), x)


def test_argmax_does_not_depend_on_what_else_is_returned() -> None:
    """B113"""
    x, y = torch.randn(8, 64), torch.randn(8, 64)
    alone = compiled(lambda x, y: (x * y).argmax(1))(x, y)
    torch._dynamo.reset()
    product, together = compiled(lambda x, y: ((p := x * y), p.argmax(1)))(x, y)
    assert torch.equal(alone, together) and torch.equal(alone, product.argmax(1))


@pytest.mark.parametrize("rows", [512, 2048])
def test_gathers_in_bfloat16_are_exact(rows: int) -> None:
    """B115"""
    x = torch.randn(2, rows, 8, dtype=torch.bfloat16)
    batch, index = torch.arange(2)[:, None], torch.randint(0, rows, (2, 33))

    def fn(x: Tensor, batch: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return x[batch, index], F.embedding(index, x[0]), x.gather(1, index[..., None].expand(-1, -1, 8)), x.index_select(1, index[0])

    check(fn, x, batch, index, rtol=0, atol=0)


@pytest.mark.parametrize("length", [1, 7, 128, 1025])
def test_cumsum(length: int) -> None:
    """B117: float32 within the default tolerance of eager's (which adds in float64), int32 exact, along each dim; twice the same."""
    x = torch.randn(3, length)
    f = compiled(lambda x, n: (x.cumsum(1), x.t().cumsum(0), n.cumsum(1), n.t().cumsum(0, dtype=torch.int32)))
    n = torch.randint(-1000, 1000, (3, length), dtype=torch.int32)
    first, second = f(x, n), f(x, n)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first[0], x.cumsum(1))
    assert torch.equal(first[2], n.cumsum(1)) and torch.equal(first[3], n.t().cumsum(0).int())
    assert torch.equal(first[0], first[1].t()) and not host_ops()
