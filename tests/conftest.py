"""Every test has caches of its own and a Dynamo without memory of other tests."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._logging._internal import trace_log

from neuron_dynamo import report


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NEURON_DYNAMO_CACHE_DIR", str(tmp_path / "neuron_cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch_cache"))
    # pytest listens to loggers that do not propagate: each of TORCH_TRACE's records would be composed, for nobody.
    monkeypatch.setattr(trace_log, "propagate", True)
    # A measurement for PyTorch's log, after a flush of the CPU's caches.
    monkeypatch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0)
    torch._dynamo.reset()
    report.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


SAMPLED = (
    "tests/lowering/ops/",
    "tests/lowering/test_databases.py",
    "tests/lowering/test_higher_order.py",
    "tests/models/",
    "tests/features/",
    "tests/passes/fusion/",
)
"""Where the suite runs every second variant of a parametrized test; the others are of the sweep, as tools/op_coverage and tools/zoo are."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.nodeid.startswith(SAMPLED) and "[" in item.nodeid and item.get_closest_marker("sweep") is None:
            variants[item.nodeid.partition("[")[0]].append(item)
    for alike in variants.values():
        # By a digest of the name: the same ones in every run, and no order of the parameters decides.
        alike.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        for item in alike[(len(alike) + 1) // 2 :]:
            item.add_marker(pytest.mark.sweep)
