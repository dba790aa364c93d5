"""Program: one canonical StableHLO module with its signature, the unit that compilers take and the cache stores."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import torch

from neuron_dynamo.errors import SourceLine

STABLEHLO_VERSION = "1.17.0"
"""Version of the portable artifact: the lower of torch-mlir's and jaxlib's StableHLO (a contract test checks both)."""

ENTRY = "main"
"""Name of a program's entry function."""

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.float8_e8m0fnu: "float8_e8m0fnu",
}
DTYPES_BY_NAME = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Shape (elements, row-major) and dtype of one input or output of a Program."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def to_json(self) -> list[Any]:
        return [list(self.shape), DTYPE_NAMES[self.dtype]]

    @staticmethod
    def from_json(data: list[Any]) -> TensorSpec:
        return TensorSpec(tuple(data[0]), DTYPES_BY_NAME[data[1]])


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a Program in calling order; every tensor is dense and row-major.

    `aliases` pairs (output index, input index) where the output is the new value of a mutated input.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    aliases: tuple[tuple[int, int], ...] = ()

    def bound_aliases(self) -> tuple[tuple[int, int], ...]:
        """Those of `aliases` that a device can compute in place: specs are equal, and no input or output comes twice.

        What declares aliases to a compiler and what binds memory at run time both ask here: they must not differ.
        """
        bound: dict[int, int] = {}
        for output, argument in sorted(self.aliases):
            if self.outputs[output] == self.inputs[argument] and output not in bound and argument not in bound.values():
                bound[output] = argument
        return tuple(bound.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "aliases": [list(pair) for pair in self.aliases],
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Signature:
        return Signature(
            tuple(TensorSpec.from_json(spec) for spec in data["inputs"]),
            tuple(TensorSpec.from_json(spec) for spec in data["outputs"]),
            tuple((out, arg) for out, arg in data["aliases"]),
        )


@dataclass(frozen=True)
class OpSource:
    """One row of the side table: a StableHLO op (index in print order of @main, and name) and the FX node behind it."""

    index: int
    op: str
    fx_node: str
    fx_op: str
    source: SourceLine | None


@dataclass(frozen=True)
class Program:
    """Canonical StableHLO and what is needed to call it.

    `stablehlo` is a location-free portable artifact at STABLEHLO_VERSION: equal computations give equal bytes in any
    process. `sources` is for people and takes no part in `digest` or equality.
    """

    stablehlo: bytes
    signature: Signature
    sources: tuple[OpSource, ...] = field(default=(), compare=False, repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the StableHLO bytes and the signature."""
        hasher = hashlib.sha256(self.stablehlo)
        hasher.update(json.dumps(self.signature.to_json(), sort_keys=True).encode())
        return hasher.hexdigest()
