"""NestedTensor in the jagged layout through torch.compile: AOTAutograd's graphs are over values and offsets, with symbolic sizes.

Each function is called with batches of other lengths: one capture, specialised per size, forward and backward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

import neuron_dynamo
from tests.features.native import compiled, host_ops

WIDTH = 8


def ragged(*lengths: int) -> Tensor:
    parts = [torch.randn(length, WIDTH) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def dense(result: Tensor) -> Tensor:
    return result.values() if result.is_nested else result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


FUNCTIONS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "linear": lambda: nn.Linear(WIDTH, 5),
    "layer_norm": lambda: nn.LayerNorm(WIDTH),
    "block": Block,
    "elementwise": lambda: lambda x: (x * 2 + 1).sin() * x,
    "softmax": lambda: lambda x: x.softmax(-1),
    "padded": lambda: lambda x: x.to_padded_tensor(0.0).softmax(1),
}


def parameters(fn: Any) -> list[Tensor]:
    return list(fn.parameters()) if isinstance(fn, nn.Module) else []


def values_and_gradients(fn: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Result, gradient of x and of parameters, under a loss that tells elements apart."""
    x = x.detach().requires_grad_()
    for p in parameters(fn):
        p.grad = None
    out = dense(run(x))
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), dense(x.grad), *(p.grad for p in parameters(fn))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_and_backward(name: str) -> None:
    fn = FUNCTIONS[name]()
    counter = CompileCounterWithBackend("neuron")
    run = torch.compile(fn, backend=counter, fullgraph=True, dynamic=True)
    for lengths in ((3, 5), (2, 4, 6)):
        x = ragged(*lengths)
        torch.testing.assert_close(values_and_gradients(fn, run, x), values_and_gradients(fn, fn, x))
    assert {graph.kind for graph in neuron_dynamo.reports()} == {"forward", "backward"}
    assert not host_ops()
    assert counter.frame_count <= 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, [2, WIDTH // 2]).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


def test_attention() -> None:
    """Whole and native, though PyTorch's own definition for CPU tensors cannot be traced; rows do not see each other."""
    module = Attention()
    run = compiled(module)
    for lengths in ((3, 5),):
        x = ragged(*lengths)
        results = [values_and_gradients(module, f, x) for f in (module, run)]
        torch.testing.assert_close(results[1], results[0])
        alone = run(torch.nested.nested_tensor([x.detach()[0]], layout=torch.jagged, requires_grad=True))
        torch.testing.assert_close(alone.values().detach(), results[1][0][: lengths[0]])
    assert {graph.kind for graph in neuron_dynamo.reports()} == {"forward", "backward"}
    assert not host_ops()


def test_attention_over_rows_of_other_lengths() -> None:
    """Queries and keys of different lengths."""
    q, k = (
        torch.nested.nested_tensor([torch.randn(n, 2, 4) for n in lengths], layout=torch.jagged).transpose(1, 2)
        for lengths in ((2, 1, 3), (4, 2, 5))
    )
    actual = compiled(lambda q, k: F.scaled_dot_product_attention(q, k, k * 2))(q, k)
    torch.testing.assert_close(actual.values(), F.scaled_dot_product_attention(q, k, k * 2).values())
    assert not host_ops()


def test_attention_whose_longest_row_is_unknown() -> None:
    """Made from values and offsets alone: then the length depends on data, and Dynamo breaks the graph. Given, it does not."""

    def fn(values: Tensor, offsets: Tensor, longest: int | None) -> Tensor:
        x = torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=longest, min_seqlen=None if longest is None else 1)
        x = x.unflatten(-1, [2, WIDTH // 2]).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(-2).values()

    values, offsets = torch.randn(8, WIDTH), torch.tensor([0, 3, 8])
    expected = fn(values, offsets, 5)
    torch.testing.assert_close(compiled(fn)(values, offsets, 5), expected)
    torch._dynamo.reset()
    with pytest.raises(Unsupported):
        compiled(fn)(values, offsets, None)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(fn, fullgraph=False)(values, offsets, None), expected)


def test_embedding() -> None:
    table = nn.Embedding(10, WIDTH, padding_idx=0)
    run = compiled(table)
    for lists in ([[1, 2, 3], [4, 5, 6, 7, 1]], [[0], [9, 9], [2, 0, 2, 8]]):
        index = torch.nested.nested_tensor([torch.tensor(row) for row in lists], layout=torch.jagged)
        results = []
        for f in (run, table):
            table.weight.grad = None
            out = f(index)
            assert torch.equal(out.offsets(), index.offsets())
            (out.values() * torch.linspace(0, 1, out.values().numel()).view(-1, WIDTH)).sum().backward()
            results.append([out.values().detach(), table.weight.grad])
        torch.testing.assert_close(*results)
    assert not host_ops()


def test_made_and_taken_apart_inside() -> None:
    def fn(values: Tensor, offsets: Tensor) -> Tensor:
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        return (nested * 2).values() + 1

    values, offsets = torch.randn(8, WIDTH), torch.tensor([0, 3, 8])
    torch.testing.assert_close(compiled(fn)(values, offsets), fn(values, offsets))
    assert not host_ops()


def test_sum_of_each_row() -> None:
    x = ragged(3, 5).detach()
    torch.testing.assert_close(compiled(lambda x: x.sum(1))(x), x.sum(1))
    assert not host_ops()


def test_no_noise_from_pytorchs_cache(caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch's key cannot pickle a nested tensor, and would say so with a traceback for each graph."""
    with caplog.at_level(logging.WARNING):
        compiled(lambda x: x * 2)(ragged(2, 3).detach())
    assert not [record for record in caplog.records if "pickle" in record.getMessage()]


# Jagged and padded, by themselves


@pytest.mark.parametrize("length", [5, 3, 7])
@pytest.mark.parametrize("padding", [0.0, -torch.inf])
def test_jagged_to_padded(length: int, padding: float) -> None:
    """Rows of 3, 0 and 5: cut where they are longer, filled up where they are shorter."""
    op = torch.ops.aten._jagged_to_padded_dense_forward
    values, offsets = torch.randn(8, 2), torch.tensor([0, 3, 3, 8])
    torch.testing.assert_close(
        compiled(lambda v, o: op(v, [o], [length], padding))(values, offsets), op(values, [offsets], [length], padding)
    )
    assert not host_ops()


@pytest.mark.parametrize("length", [5, 9])
def test_padded_to_jagged(length: int) -> None:
    op = torch.ops.aten._padded_dense_to_jagged_forward
    padded, offsets = torch.randn(3, length, 2), torch.tensor([0, 3, 3, 8])
    torch.testing.assert_close(compiled(lambda p, o: op(p, [o], 8))(padded, offsets), op(padded, [offsets], 8))
    assert not host_ops()
