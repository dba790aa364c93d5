"""Every test has caches of its own and a Dynamo without memory of other tests."""

from __future__ import annotations

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
