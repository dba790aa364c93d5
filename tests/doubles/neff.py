"""Synthetic NEFFs of given tensors and programs, in the layout of the doubles (neff_writer.py).

A file that this writes is accepted by our reader and by the libnrt double, which proves nothing about the real runtime.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from neuron_dynamo.lowering.program import Program
from tests.doubles.neff_writer import HEADER, archive, header

NRT_DTYPES = {
    torch.bool: 3,
    torch.int8: 2,
    torch.uint8: 3,
    torch.int16: 4,
    torch.uint16: 5,
    torch.int32: 8,
    torch.uint32: 9,
    torch.int64: 12,
    torch.uint64: 1,
    torch.float16: 7,
    torch.bfloat16: 6,
    torch.float32: 10,
    torch.float8_e4m3fn: 2,
    torch.float8_e5m2: 2,
}
"""nrt_dtype_t that the runtime reports: bool as UINT8, fp8 as INT8."""


@dataclass(frozen=True)
class Tensor:
    """An input or output; `shape` is row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def describe(self, usage: str) -> dict[str, object]:
        size = prod(self.shape) * self.dtype.itemsize
        return {"name": self.name, "usage": usage, "size": size, "dtype": NRT_DTYPES[self.dtype], "shape": list(self.shape)}


def write_neff(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    aliases: Sequence[tuple[int, int]] = (),
    members: Mapping[str, bytes] | None = None,
    lnc: int = 2,
    compress: bool = True,
) -> bytes:
    """A NEFF with these inputs and outputs; `aliases` are (output, input), `members` further files of its archive."""
    tensors = {
        "inputs": [tensor.describe("input") for tensor in inputs],
        "outputs": [tensor.describe("output") for tensor in outputs],
        "aliases": [list(pair) for pair in aliases],
    }
    table = {
        tensor["name"]: {"type": tensor["usage"], "var_id": number, "size": tensor["size"]}
        for number, tensor in enumerate((*tensors["inputs"], *tensors["outputs"]))
        if isinstance(tensor, dict)
    }
    table["scratch"] = {"type": "tmp-buf", "var_id": len(table), "size": 64}
    files = {
        "kelf-a.json": b"{}",
        "sg00/def.json": json.dumps({"var": table}).encode(),
        "tensors.json": json.dumps(tensors).encode(),
        **(members or {}),
    }
    body = archive(files, compress=compress)
    return header(body, lnc) + body


def with_header(body: bytes, *, lnc: int = 2) -> bytes:
    """`body` behind a header that fits it."""
    return header(body, lnc) + body


def of_program(program: Program, *, suffix: str = "", lnc: int = 2) -> bytes:
    """The NEFF that a compiler would make of `program`; `suffix` ends the names of mutated inputs."""
    signature = program.signature
    mutated = {argument for _, argument in signature.bound_aliases()}
    inputs = [Tensor(f"input{i}{suffix if i in mutated else ''}", s.shape, s.dtype) for i, s in enumerate(signature.inputs)]
    outputs = [Tensor(f"output{i}", s.shape, s.dtype) for i, s in enumerate(signature.outputs)]
    return write_neff(inputs, outputs, aliases=signature.bound_aliases(), members={"program.mlir": program.stablehlo}, lnc=lnc)


__all__ = ["HEADER", "Tensor", "of_program", "with_header", "write_neff"]
