"""Sparse tensors. Dynamo takes none: it breaks the graph around them, eager PyTorch does the sparse part, and numbers are right.

What can be written over indices and values is native; the last tests show how.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

import neuron_dynamo
from tests.features.native import check_native, compiled, host_ops

A = torch.tensor([[0.0, 2, 0], [3, 0, 4], [0, 0, 5]])
B = torch.tensor([[1.0, -2], [0.5, 3], [2, 7]])
INDICES = torch.tensor([[0, 0, 1], [1, 1, 2]])


def between(a: Tensor, b: Tensor) -> Tensor:
    """Dense work on both sides of a sparse product."""
    scaled = (b * 2).sin()
    return (a.to_sparse() @ scaled).cos() + 1


INSIDE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "coo @ dense": lambda a, b: a.to_sparse() @ b,
    "csr @ dense": lambda a, b: a.to_sparse_csr() @ b,
    "dense @ coo": lambda a, b: b.t() @ a.to_sparse(),
    "dense @ csr": lambda a, b: b.t() @ a.to_sparse_csr(),
    "torch.sparse.mm": lambda a, b: torch.sparse.mm(a.to_sparse(), b),
    "coo @ coo": lambda a, b: (a.to_sparse() @ a.to_sparse()).to_dense(),
    "addmm": lambda a, b: torch.sparse.addmm(torch.ones(3, 2), a.to_sparse(), b, beta=2, alpha=3),
    "times a number": lambda a, b: (a.to_sparse() * 2).to_dense(),
    "sum of two": lambda a, b: (a.to_sparse() + (a * 2).to_sparse()).to_dense(),
    "product of two": lambda a, b: (a.to_sparse() * a.t().to_sparse()).to_dense(),
    "relu": lambda a, b: torch.relu((a - 3).to_sparse()).to_dense(),
    "coalesce": lambda a, b: torch.sparse_coo_tensor(INDICES, torch.ones(3) * b[0, 0], (3, 3)).coalesce().values(),
    "to_dense": lambda a, b: torch.sparse_coo_tensor(INDICES, torch.ones(3), (3, 3)).to_dense() + a,
    "made as csr": lambda a, b: torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2]), torch.ones(3), (3, 3)) @ b,
    "softmax": lambda a, b: torch.sparse.softmax(a.to_sparse(), 1).to_dense(),
    "sum": lambda a, b: torch.sparse.sum(a.to_sparse(), 1).to_dense(),
    "between dense work": between,
}


@pytest.mark.parametrize("name", INSIDE)
def test_made_inside(name: str) -> None:
    fn = INSIDE[name]
    with pytest.raises(Unsupported):
        compiled(fn)(A, B)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(fn, fullgraph=False)(A, B), fn(A, B))
    assert not host_ops()  # the sparse part is in no graph


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr], ids=str)
def test_as_an_argument(layout: torch.layout) -> None:
    sparse = A.repeat(2, 2).to_sparse(layout=layout, blocksize=(2, 2) if layout == torch.sparse_bsr else None)
    dense = torch.cat([B, -B])

    def fn(s: Tensor, d: Tensor) -> Tensor:
        return s @ d + 1

    with pytest.raises(Unsupported, match="sparse"):
        compiled(fn)(sparse, dense)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(fn, fullgraph=False)(sparse, dense), fn(sparse, dense))


def test_dense_work_around_a_sparse_product_is_compiled() -> None:
    compiled(between, fullgraph=False)(A, B)
    assert sum(graph.native for graph in neuron_dynamo.reports()) >= 2


def test_gradient_through_a_sparse_product() -> None:
    grads = []
    for fn in (between, compiled(between, fullgraph=False)):
        a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
        fn(a, b).sum().backward()
        grads.append((a.grad, b.grad))
    torch.testing.assert_close(grads[1], grads[0])


def test_embedding_with_a_sparse_gradient() -> None:
    """Compiled whole: the rows are native, the sparse tensor around them is made on the host."""
    tables = [nn.Embedding(10, 4, sparse=True) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    index = torch.tensor([[1, 2], [1, 7]])
    for table, f in ((tables[0], tables[0]), (tables[1], compiled(tables[1], fullgraph=True))):
        optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
        f(index).square().sum().backward()
        assert table.weight.grad.layout == torch.sparse_coo
        optimizer.step()
    torch.testing.assert_close(tables[1].weight, tables[0].weight)
    assert set(host_ops()) <= {"aten._sparse_coo_tensor_with_dims_and_tensors.default"}


# The same over indices and values, in one native graph. The parts are cloned, because Dynamo fails on views of a sparse tensor.


def test_coo_product_over_indices() -> None:
    def fn(rows: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
        return torch.zeros(3, 2).index_add(0, rows, values[:, None] * dense[columns])

    coo = A.to_sparse().coalesce()
    actual = check_native(fn, *coo.indices().clone(), coo.values().clone(), B)
    torch.testing.assert_close(actual, coo @ B)


def test_csr_product_over_offsets() -> None:
    def fn(offsets: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
        return F.embedding_bag(columns, dense, offsets, mode="sum", per_sample_weights=values, include_last_offset=True)

    csr = A.to_sparse_csr()
    actual = check_native(fn, csr.crow_indices().clone(), csr.col_indices().clone(), csr.values().clone(), B)
    torch.testing.assert_close(actual, csr @ B)
