"""Padded forms: cut to their true size they are what eager PyTorch gives, in values, dtypes and strides; and through the backend."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import neuron_dynamo
from neuron_dynamo.passes.padded import UNDEFINED, padded_form

aten = torch.ops.aten
DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
SHAPES = ((), (1,), (40,), (5, 3), (3, 4, 2), (0,), (0, 3), (3, 0))
NAN = float("nan")
ODD = torch.tensor([NAN, 1.0, -0.0, 0.0, NAN, 2, 1, -NAN])


def padded(op: Any, *args: Any) -> Any:
    form = padded_form(op)
    assert form is not None
    *made, size = form.compute(*args)
    return form.finish(int(size), made, *args)


def same(op: Any, *args: Any) -> None:
    form = padded_form(op)
    assert form is not None
    try:
        expected = op(*args)
    except (RuntimeError, IndexError):
        assert form.why_not(*args) is not None
        return
    assert form.why_not(*args) is None
    actual = padded(op, *args)
    pairs = [(actual, expected)] if isinstance(actual, torch.Tensor) else list(zip(actual, expected, strict=True))
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        assert mine.stride() == theirs.stride() or not mine.numel()
        assert mine.untyped_storage().nbytes() == mine.numel() * mine.element_size()


def inputs() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        x = torch.randint(0, 3, shape, generator=generator).to(dtype)
        yield x
        if x.ndim > 1:
            yield x.transpose(0, 1)
    yield ODD


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=2)))
def test_unique(flags: tuple[bool, bool]) -> None:
    for x in inputs():
        same(aten._unique2.default, x, True, *flags)
        same(aten.unique_consecutive.default, x, *flags)
        for dim in range(-x.ndim, x.ndim):
            same(aten.unique_consecutive.default, x, *flags, dim)
            if x is not ODD:
                same(aten.unique_dim.default, x, dim, True, *flags)


def test_slices_with_nan_have_no_order() -> None:
    form = padded_form(aten.unique_dim.default)
    assert form is not None
    assert form.compute(torch.stack([ODD, ODD]), 0)[-1] == UNDEFINED


def test_wide_slices_are_ordered_by_all_their_elements() -> None:
    x = torch.zeros(6, 1000)
    x[[1, 3], 999], x[2, 500], x[4, 0], x[0, 0] = -1, 1, -2, -2
    same(aten.unique_dim.default, x, 0, True, True, True)


def test_masks() -> None:
    generator = torch.Generator().manual_seed(0)

    def mask(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator) > 0.5

    for x in inputs():
        same(aten.nonzero.default, x)
        same(aten.masked_select.default, x, mask(*x.shape))
        same(aten.masked_select.default, x, mask(*x.shape[-1:]))
        for first, last in itertools.combinations(range(x.ndim + 1), 2):
            same(aten.index.Tensor, x, [None] * first + [mask(*x.shape[first:last])])


def test_through_the_backend_it_is_native_at_any_size() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.unique(x, dim=1, return_counts=True)

    compiled = torch.compile(model, backend="neuron", fullgraph=True, options={"fallback": "error"})
    before = len(neuron_dynamo.reports())
    for x in (torch.tensor([[1, 2, 1, -1], [0, 3, 0, 4]]), torch.ones(2, 4, dtype=torch.int64)):
        for mine, theirs in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride()
    assert not any(graph.host for graph in neuron_dynamo.reports()[before:])


def test_undefined_data_is_left_to_eager() -> None:
    compiled = torch.compile(lambda x: torch.unique(x, dim=0), backend="neuron", fullgraph=True)
    for x in (torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[NAN, 2.0], [1.0, 0.0]])):
        torch.testing.assert_close(compiled(x), torch.unique(x, dim=0), equal_nan=True)


@pytest.mark.parametrize("x", [torch.zeros(3, 0), torch.zeros(0, dtype=torch.bool)], ids=str)
def test_of_nothing_it_is_native(x: torch.Tensor) -> None:
    def model(x: torch.Tensor) -> list[torch.Tensor]:
        of_dim = [f(x, return_inverse=True, dim=x.ndim - 1) for f in (torch.unique, torch.unique_consecutive)]
        return [*torch.unique(x, return_counts=True), *of_dim[0], *of_dim[1], x.nonzero()]

    compiled = torch.compile(model, backend="neuron", fullgraph=True, options={"fallback": "error"})
    for mine, theirs in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(mine, theirs)
