"""Ops that are left to Torch-MLIR's own StableHLO conversion. None is at present: each op that is lowered has a rule of ours.

An op belongs here only once its OpInfo samples equal eager's through that conversion. Anything that is neither here nor has a rule
never reaches Torch-MLIR, whose passes can abort the process.
"""

from __future__ import annotations

from typing import Any

TORCH_MLIR_OPS: frozenset[Any] = frozenset()
