"""Embedding tables and bags against eager PyTorch, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check

TABLE = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([[1, 5, 1], [0, 2, 1]])
FLAT = torch.tensor([1, 5, 1, 0, 2, 1, 4])
OFFSETS = torch.tensor([0, 3, 3, 5])  # the second bag is empty


def test_embedding() -> None:
    ways: tuple[dict[str, Any], ...] = ({}, {"padding_idx": 1}, {"padding_idx": -1}, {"scale_grad_by_freq": True})

    def step(table: torch.Tensor, index: torch.Tensor) -> Any:
        table = table.detach().requires_grad_()
        outs = [F.embedding(index, table, **options) for options in ways]
        return outs, [torch.autograd.grad(out, [table], torch.arange(18.0).reshape(2, 3, 3)) for out in outs]

    check(step, TABLE, INDEX)


def test_embedding_of_bfloat16_and_int32_indices() -> None:
    check(lambda table, index: F.embedding(index, table), TABLE.bfloat16(), INDEX.int())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str) -> None:
    def step(table: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, closed: torch.Tensor) -> Any:
        table = table.detach().requires_grad_()
        outs = [
            F.embedding_bag(index, table, offsets, mode=mode),
            F.embedding_bag(index, table, offsets, mode=mode, padding_idx=1),
            F.embedding_bag(index, table, closed, mode=mode, include_last_offset=True),
        ]
        return outs, [torch.autograd.grad(out, [table], torch.arange(12.0).reshape(4, 3)) for out in outs]

    check(step, TABLE, FLAT, OFFSETS, torch.cat([OFFSETS, torch.tensor([7])]))


def test_bag_without_gradient_and_by_rows() -> None:
    check(lambda table, index: F.embedding_bag(index, table, mode="mean"), TABLE, INDEX)


def test_bag_of_equal_maxima_takes_the_first() -> None:
    def step(table: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor) -> Any:
        table = table.detach().requires_grad_()
        out = F.embedding_bag(index, table, offsets, mode="max")
        return out, torch.autograd.grad(out, [table], torch.ones(2, 2))

    check(step, torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 3.0]]), torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 3]))


def test_weighted_bags() -> None:
    def step(table: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor) -> Any:
        table, weights = table.detach().requires_grad_(), weights.detach().requires_grad_()
        out = F.embedding_bag(index, table, offsets, mode="sum", per_sample_weights=weights)
        return out, torch.autograd.grad(out, [table, weights], torch.arange(12.0).reshape(4, 3))

    check(step, TABLE, FLAT, OFFSETS, torch.randn(7))


def test_renorm() -> None:
    renorm = torch.ops.aten.embedding_renorm
    norms = (1.0, 2.0, 3.0, float("inf"))
    check(lambda table, index: [renorm(table, index, 1.0, norm) for norm in norms], TABLE, torch.tensor([1, 1, 4]), rtol=1e-5, atol=1e-6)
