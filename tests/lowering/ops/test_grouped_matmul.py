"""Grouped matrix products against plain ones, group by group: empty groups, groups past a block, rows behind the last group."""

from __future__ import annotations

import pytest
import torch

from neuron_dynamo.lowering.pipeline import lower
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import check, run, trace

COUNTS = {
    "uneven": [100, 0, 150, 50, 0],
    "one": [0, 0, 0, 0, 300],
    "rows left": [1, 2, 3, 4, 5],
    "none": [0, 0, 0, 0, 0],
    "whole blocks": [128, 128, 44, 0, 0],
}


def _both(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    ops = torch.ops.transformers
    return ops.grouped_mm_fallback(x, w, offsets), *ops.grouped_mm_fallback_backward(x, w, offsets, grad)


def test_hugging_face_fallback() -> None:
    pytest.importorskip("transformers.integrations.moe")
    torch.manual_seed(0)
    x, w, grad = torch.randn(300, 8).double(), torch.randn(5, 8, 6).double(), torch.randn(300, 6).double()
    offsets = torch.tensor(list(COUNTS.values())).cumsum(1).int()
    tensors = [x, w, offsets[0], grad]
    program = lower(trace(_both, tensors).graph, get_target("host"))
    for ends in offsets:
        torch.testing.assert_close(tuple(run(program, [x, w, ends, grad])), _both(x, w, ends, grad))


def test_aten() -> None:
    torch.manual_seed(0)
    offsets = torch.tensor([16, 16, 160, 256]).int()
    rows, other, groups = torch.randn(256, 16).bfloat16(), torch.randn(256, 32).bfloat16(), torch.randn(4, 16, 32).bfloat16()
    grouped_mm = torch.nn.functional.grouped_mm
    check(lambda x, w, o: grouped_mm(x, w, offs=o), rows, groups, offsets)
    check(lambda x, y, o: grouped_mm(x.transpose(0, 1), y, offs=o), rows, other, offsets)
    check(lambda x, w: grouped_mm(x, w), torch.randn(4, 32, 16).bfloat16(), groups)
    check(lambda x, y, o: grouped_mm(x, y, offs=o), torch.randn(4, 32, 16).bfloat16(), torch.randn(16, 256).bfloat16(), offsets)


def test_without_loops() -> None:
    """Targets that do not run loops well get masked products: the same numbers."""
    torch.manual_seed(0)
    pytest.importorskip("transformers.integrations.moe")
    offsets = torch.tensor([2, 2, 5]).int()
    x, w, grad = torch.randn(7, 4), torch.randn(3, 4, 6), torch.randn(7, 6)
    tensors = [x, w, offsets, grad]
    program = lower(trace(_both, tensors).graph, get_target("trn2"))
    torch.testing.assert_close(tuple(run(program, tensors)), _both(*tensors), rtol=1e-5, atol=1e-5)
