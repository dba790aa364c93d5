"""Every test has caches of its own and a Dynamo without memory of other tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from neuron_dynamo import report


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NEURON_DYNAMO_CACHE_DIR", str(tmp_path / "neuron_cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch_cache"))
    torch._dynamo.reset()
    report.clear()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
