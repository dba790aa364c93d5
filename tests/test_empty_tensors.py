"""Tensors with a dimension of size 0 against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

NO_INTEGERS = torch.zeros(0, dtype=torch.int64)

ELEMENTWISE_AND_ORDER: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: (x + 1, x * x, x > 0, x.exp(), x.round(), x.clone(), torch.where(x > 0, x, 1)),
    lambda x: (x.sort(-1), x.argsort(-1), x.topk(0, -1), x.flip(0), x.roll(1), x.diff(), x.tril(), torch.diag(x.reshape(-1))),
    lambda x: (torch.unique(x), torch.unique_consecutive(x), torch.isin(x, x), torch.nonzero(x), x.masked_select(x > 0)),
    lambda x: (torch.searchsorted(torch.arange(3.0), x), torch.bucketize(x, torch.arange(3.0)), torch.searchsorted(x.reshape(-1), x)),
    lambda x: (x.cumsum(0), x.cumprod(1), x.cummax(0), x.logcumsumexp(0), torch.trapezoid(x.T)),
    lambda x: (torch.cat([x, x]), torch.stack([x, x]), F.pad(x, (1, 1)), x.repeat(2, 1), torch.tile(x, (2,)), torch.kron(x, x)),
    lambda x: (
        x.index_select(0, NO_INTEGERS),
        x.gather(0, x.long()),
        x.scatter_add(0, x.long(), x),
        F.embedding(x.long(), torch.ones(3, 4)),
    ),
)
REDUCTIONS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: (x.sum(), x.prod(0), x.mean(), x.std(), x.var(0), x.norm(), x.logsumexp(0), x.softmax(0), x.median(), x.nanmedian()),
    lambda x: ((x > 0).all(), (x > 0).any(0), torch.histc(x, 5, -1, 1), torch.histogramdd(x, [2, 2, 2], range=[0.0, 1.0] * 3)[0]),
    lambda x: (F.mse_loss(x, x), F.cross_entropy(x, NO_INTEGERS), F.nll_loss(x, NO_INTEGERS, reduction="sum"), F.cosine_similarity(x, x)),
)
PRODUCTS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: (x @ x.T, x.T @ x, F.linear(x, torch.ones(4, 3)), torch.outer(x.reshape(-1), torch.ones(3)), torch.einsum("ij,ik->jk", x, x)),
    lambda x: torch.addbmm(torch.ones(1, 4), x.reshape(2, 0, 3), torch.ones(2, 3, 4)),
    lambda x: torch.addbmm(torch.ones(5, 1), torch.ones(2, 5, 3), x.reshape(2, 3, 0)),
    lambda x: torch.addbmm(torch.ones(5, 4), x.reshape(0, 5, 3), x.reshape(0, 3, 4)),
    lambda x: torch.addbmm(torch.ones(5, 4), x.reshape(2, 5, 0), x.reshape(2, 0, 4)),
    lambda x: (torch.cdist(x, torch.ones(2, 3)), F.pdist(x), torch.linalg.qr(x), torch.linalg.solve(torch.eye(3), x.reshape(3, 0))),
    lambda x: (torch.linalg.inv(m := x.reshape(0, 3, 3)), torch.linalg.det(m), torch.linalg.cholesky(m), torch.linalg.svdvals(m)),
    lambda x: F.scaled_dot_product_attention(q := x.reshape(0, 2, 5, 4), q, q),
)
LAYERS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: (F.layer_norm(x, (3,)), F.group_norm(x.reshape(0, 4, 3), 2), F.batch_norm(x, torch.zeros(3), torch.ones(3))),
    lambda x: (F.conv1d(x.reshape(0, 4, 5), torch.ones(2, 4, 3)), F.max_pool2d(p := x.reshape(0, 4, 5, 5), 2), F.avg_pool2d(p, 2)),
    lambda x: (F.adaptive_avg_pool2d(p := x.reshape(0, 4, 5, 5), 2), F.adaptive_max_pool2d(p, 2), F.lp_pool2d(p, 2.0, 2)),
    lambda x: (F.interpolate(p := x.reshape(0, 4, 5, 5), scale_factor=2.0), F.interpolate(p, scale_factor=2.0, mode="bilinear")),
    lambda x: (
        F.grid_sample(x.reshape(0, 4, 5, 5), torch.zeros(0, 3, 3, 2)),
        F.pixel_shuffle(x.reshape(0, 4, 3, 3), 2),
        F.glu(x.reshape(0, 4)),
    ),
    lambda x: (F.unfold(x.reshape(0, 4, 5, 5), 2), F.fold(x.reshape(0, 4, 4), (3, 3), 2)),
    lambda x: F.embedding_bag(NO_INTEGERS, torch.ones(3, 4), torch.zeros(2, dtype=torch.int64)),
)


@pytest.mark.parametrize(
    "calls", [ELEMENTWISE_AND_ORDER, REDUCTIONS, PRODUCTS, LAYERS], ids=["elementwise", "reductions", "products", "layers"]
)
def test_as_eager(calls: tuple[Callable[[Tensor], Any], ...]) -> None:
    def everything(x: Tensor) -> list[Any]:
        return [call(x) for call in calls]

    x = torch.zeros(0, 3)
    actual = torch.compile(everything, backend="neuron", fullgraph=True, dynamic=False)(x)
    torch.testing.assert_close(actual, everything(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_products_of_nothing_written_as_constants(dtype: torch.dtype) -> None:
    """XLA divides by zero while it compiles a batched bfloat16 product without a contracted element."""

    def products(x: Tensor) -> list[Tensor]:
        return [torch.einsum("bo,bi,bj->oij", x, x, x), x.new_ones(1, 64, 0) @ x.new_ones(1, 0, 8), x.new_ones(8, 0) @ x.new_ones(0, 3)]

    x = torch.zeros(0, 8, dtype=dtype)
    torch.testing.assert_close(torch.compile(products, backend="neuron", fullgraph=True, dynamic=False)(x), products(x))


@pytest.mark.parametrize("call", [torch.max, torch.min])
def test_the_extreme_of_no_elements_is_eagers_error(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="Expected reduction dim to be specified"):
        torch.compile(lambda x: call(x), backend="neuron", fullgraph=True)(torch.zeros(0, 3))
