"""Indexing, scatter, counting and strided views against eager PyTorch: negative indices, duplicates, empty and 0-d tensors, dtypes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from neuron_dynamo.lowering import registry
from tests.lowering.opcheck import check

aten = torch.ops.aten
X = torch.arange(60.0).reshape(3, 4, 5)
ROWS = torch.tensor([2, -1, 0, 0])
GRID = torch.tensor([[-4], [3]])

READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "first dim": lambda x: x[ROWS],
    "middle dim": lambda x: x[:, GRID],
    "last dim": lambda x: x[..., ROWS],
    "adjacent": lambda x: x[:, GRID, ROWS],
    "apart": lambda x: x[ROWS[:2], :, GRID],
    "all": lambda x: x[GRID % 3, GRID, ROWS],
    "with a slice": lambda x: x[1:, ROWS, ::2],
    "0-d index": lambda x: x[:, torch.tensor(-2)],
    "int32 index": lambda x: x[ROWS.int()],
    "empty index": lambda x: x[:, torch.tensor([], dtype=torch.int64)],
    "take": lambda x: torch.take(x, torch.tensor([[-1, 0], [59, -60]])),
    "index_select": lambda x: torch.index_select(x, -1, torch.tensor([4, 0, 0])),
    "gather": lambda x: torch.gather(x, 1, torch.tensor([[[3, 0], [1, 1]]])),
    "gather whole": lambda x: torch.gather(x, 2, torch.zeros(3, 4, 7, dtype=torch.int64) + 3),
    "take_along_dim": lambda x: torch.take_along_dim(x, torch.tensor([[[1], [3]]]), 1),
}


def test_reads_and_their_gradients() -> None:
    def step(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        outs = [read(x) for read in READS.values()]
        return outs, [torch.autograd.grad(out, [x], torch.ones_like(out)) for out in outs]

    check(step, X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.uint8])
def test_reads_of_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: (x[ROWS], torch.gather(x, 0, torch.zeros(2, 4, 5, dtype=torch.int64)), torch.take(x, ROWS)), X.to(dtype))


V = -torch.arange(1.0, 21.0).reshape(4, 5)
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "index_put": lambda x: aten.index_put(x, [torch.tensor([2, -3]), torch.tensor([-1, 0])], V[:2]),
    "index_put apart": lambda x: aten.index_put(x, [torch.tensor([2, -3]), None, torch.tensor([-1, 0])], V[:2, :4]),
    "index_put duplicates": lambda x: aten.index_put(x, [torch.tensor([2, -1, 2])], V, True),
    "index_put broadcast": lambda x: aten.index_put(x, [None, torch.tensor([[0], [-1]])], torch.tensor(7.0)),
    "mask, one value": lambda x: aten.index_put(x, [x > 30], torch.tensor(-1.0)),
    "mask, one row": lambda x: aten.index_put(x, [torch.tensor([True, False, True])], V),
    "mask, a value each": lambda x: aten.index_put(x, [None, torch.tensor([True, False, True, True])], V[:3]),
    "mask, added": lambda x: aten.index_put(x, [x[..., 0] > 20], V[0], True),
    "mask, none": lambda x: aten.index_put(x, [x > 100], torch.tensor(-1.0)),
    "scatter": lambda x: torch.scatter(x, 1, torch.tensor([[[3, 0, 1, 2, 3]]]), V.reshape(1, 4, 5)),
    "scatter value": lambda x: torch.scatter(x, 0, torch.zeros(1, 4, 5, dtype=torch.int64) + 2, 9.0),
    "scatter multiply": lambda x: torch.scatter(x, 0, torch.zeros(2, 4, 5, dtype=torch.int64), X[:2], reduce="multiply"),
    "scatter_add": lambda x: torch.scatter_add(x, 0, torch.zeros(3, 4, 5, dtype=torch.int64), X),
    "scatter_add part": lambda x: torch.scatter_add(x, 2, torch.zeros(2, 2, 9, dtype=torch.int64) + 4, torch.ones(3, 4, 9)),
    "index_add": lambda x: torch.index_add(x, 1, torch.tensor([3, 3]), torch.ones(3, 2, 5), alpha=-2),
    "index_copy": lambda x: torch.index_copy(x, 1, torch.tensor([3, 0]), torch.ones(3, 2, 5)),
    "index_fill": lambda x: torch.index_fill(x, 1, torch.tensor([-1, 0]), 7),
    "index_fill tensor": lambda x: torch.index_fill(x, 2, torch.tensor(3), torch.tensor(7.0)),
    "put": lambda x: torch.ops.aten.put(x, torch.tensor([-1, 5, 5]), torch.tensor([1.0, 2.0, 3.0]), True),
    "masked_scatter": lambda x: x.masked_scatter(x[:, :, :1] % 2 == 0, -torch.arange(60.0)),
    "index_reduce": lambda x: torch.index_reduce(x, 0, torch.tensor([1, 1, 0]), X + 0.5, "amin", include_self=False),
}


def test_writes() -> None:
    check(lambda x: [write(x) for write in WRITES.values()], X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_scatter_reduce(dtype: torch.dtype) -> None:
    index = torch.tensor([0, 0, 0, 2, 2])
    source = torch.tensor([-3, 2, 2, -5, 4]).to(dtype)

    def step(x: torch.Tensor) -> Any:
        kinds = itertools.product(["sum", "prod", "mean", "amax", "amin"], [True, False])
        return [torch.scatter_reduce(x, 0, index, source, reduce, include_self=include_self) for reduce, include_self in kinds]

    check(step, torch.tensor([1, -7, 6, 9]).to(dtype))


def test_scatter_reduce_of_nan() -> None:
    source = torch.tensor([1.0, math.nan, 3.0])
    index = torch.tensor([0, 0, 1])
    check(lambda x: [torch.scatter_reduce(x, 0, index, source, reduce) for reduce in ("amax", "amin", "sum")], torch.zeros(3))


def test_zero_dimensional_and_empty() -> None:
    x, one = torch.tensor(3.0), torch.tensor(0)
    none = torch.zeros(0, dtype=torch.int64)
    ops = (torch.gather, torch.index_select)
    check(lambda x: [*(op(x, 0, one) for op in ops), torch.scatter_add(x, 0, one, torch.tensor(2.0)), torch.index_fill(x, 0, one, 2)], x)
    check(lambda x: (x[none], torch.index_add(x, 0, none, x[:0]), torch.scatter_add(x, 0, none.reshape(0, 2), x)), torch.randn(3, 2))


def test_sums_into_bfloat16_are_exact() -> None:
    # 300 ones: counted one by one in bfloat16 they would stop at 256.
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.scatter_add(x, 0, torch.zeros(300, dtype=torch.int64), torch.ones(300, dtype=x.dtype)).float()

    from neuron_dynamo.lowering.pipeline import lower
    from neuron_dynamo.target import get_target
    from tests.lowering.opcheck import run, trace

    x = torch.zeros(2, dtype=torch.bfloat16)
    (result,) = run(lower(trace(lambda x: (step(x),), [x]).graph, get_target("host")), [x])
    assert result.tolist() == [300.0, 0.0]


def test_guards() -> None:
    def reason(op: Any, *args: Any) -> str | None:
        guard = registry.find(op).guard  # type: ignore[union-attr]
        assert guard is not None
        return guard(*args)

    mask = torch.tensor([True, False, True])
    assert reason(aten.index.Tensor, X, [mask]) is not None
    assert reason(aten.index.Tensor, X, [None, ROWS]) is None
    assert reason(aten.index_put.default, X, [mask], V) is None
    assert reason(aten.index_put.default, X, [mask, ROWS[:2]], V) is not None
    assert reason(aten.as_strided.default, X, [2, 2], [1, 2], 3) is None
    assert reason(aten.as_strided.default, X.transpose(0, 1), [2, 2], [1, 2], 3) is not None
    assert reason(aten.as_strided.default, X[1:], [2, 2], [1, 2], 3) is not None
    assert reason(aten.as_strided.default, X[:1], [2, 20], [1, 1], 3) is not None


STRIDED: dict[str, Callable[[torch.Tensor], Any]] = {
    "tril": lambda x: (torch.tril(x), torch.tril(x, 2), torch.tril(x, -1), torch.tril(x, -100)),
    "triu": lambda x: (torch.triu(x), torch.triu(x, 2), torch.triu(x, -1), torch.triu(x, 100)),
    "diagonal": lambda x: (torch.diagonal(x), torch.diagonal(x, 2, 1, 2), torch.diagonal(x, -2, -2, -1), torch.diagonal(x, 1, 2, 0)),
    "no diagonal": lambda x: torch.diagonal(x, 5, 1, 2),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, torch.ones(3, 2) * 7, -2, 1, 2),
    "diag_embed": lambda x: torch.diag_embed(x, 1, 0, 2),
    "as_strided": lambda x: torch.as_strided(x, (4, 3, 2), (2, 7, 0), 3),
    "as_strided dense": lambda x: torch.as_strided(x, (4, 5), (5, 1), 20),
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, torch.ones(2, 3) * 7, (2, 3), (9, 2), 4),
    "unfold": lambda x: (x.unfold(2, 3, 1), x.unfold(2, 2, 2), x.unfold(1, 2, 3), x.unfold(0, 3, 1)),
    "roll": lambda x: (torch.roll(x, 3), torch.roll(x, (1, -2), (0, 2)), torch.roll(x, 7, 1), torch.roll(x, 4, 1)),
    "repeat": lambda x: (x.repeat(2, 1, 3), x.repeat(2, 1, 2, 1), torch.tile(x, (2,)), x.repeat_interleave(2, 1)),
    "flip and rot90": lambda x: (x.flip(-1), torch.rot90(x, 1, (1, 2))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_strided(dtype: torch.dtype) -> None:
    check(lambda x: [view(x) for view in STRIDED.values()], X.to(dtype))


def test_strided_gradients() -> None:
    def step(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        outs = [torch.tril(x, 1), torch.diagonal(x, 1, 1, 2), x.unfold(2, 3, 1), x.unfold(1, 2, 2), torch.roll(x, 2, 1), x.repeat(1, 2, 2)]
        return torch.autograd.grad(outs, [x], [torch.arange(o.numel(), dtype=o.dtype).reshape(o.shape) for o in outs])

    check(step, X)


def test_counting() -> None:
    x = torch.tensor([0.0, 1.0, 1.0, 7.0, 7.0, 7.5, -1.0, math.nan, 3.0])
    check(lambda x: torch.histc(x, bins=8, min=0, max=7), x)
    check(lambda x: (torch.histc(x, bins=10), torch.histc(x[:1], bins=4)), x[:7])
    counts = torch.tensor([0, 3, 0, 4, 0])
    check(lambda r: torch.repeat_interleave(r, output_size=7), counts)
    check(lambda x, r: torch.repeat_interleave(x, r, dim=1, output_size=7), torch.randn(2, 5), counts)
    grid = torch.tensor([[0, 1, 2], [0, 0, 3]])
    check(lambda x: (torch.nonzero_static(x, size=5), torch.nonzero_static(x, size=2, fill_value=7)), grid)
    check(lambda i: torch.nn.functional.one_hot(i, 5), grid)
