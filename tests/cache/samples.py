"""Artifacts, keys and options that the cache tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from neuron_dynamo.cache import PROGRAM, Artifact, CacheKey
from neuron_dynamo.lowering.program import Signature, TensorSpec
from neuron_dynamo.options import Options

SIGNATURE = Signature(
    (TensorSpec((2, 3), torch.float32), TensorSpec((), torch.int64)), (TensorSpec((2, 3), torch.bfloat16),), aliases=((0, 0),)
)


def key(program: str = "p0", **parts: str) -> CacheKey:
    return CacheKey((("program", program), ("target", "host"), *parts.items()))


def artifact(content: bytes = b"compiled bytes") -> Artifact:
    return Artifact(content, SIGNATURE, {"compile": 1.5}, "one warning", {PROGRAM: b"stablehlo of " + content})


def options(root: Path, mode: str = "on", **given: Any) -> Options:
    return Options.resolve({"cache_dir": root, "cache": mode, **given}, environ={})
