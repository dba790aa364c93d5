"""Random state of a graph call, drawn on the host from PyTorch's default generator."""

from __future__ import annotations

import torch


def rng_state() -> torch.Tensor:
    """Two fresh 64-bit words (int64[2]) from PyTorch's default CPU generator: new on each call, fixed under torch.manual_seed."""
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64)
