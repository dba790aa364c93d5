"""Writes synthetic NEFFs for the doubles of neuronx-cc and libnrt. Only the standard library: the fake compiler imports it.

Header, tarball and def.json follow the published layout; the members below `double/` exist in no real NEFF. A file that this
writes is accepted by our reader and by the libnrt double, which proves nothing about the real runtime.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

PROGRAM_MLIR = "double/program.mlir.bc"
"""StableHLO, portable artifact or text, as the fake compiler was given it."""
PROGRAM_HLO = "double/program.hlo.pb"
"""HloModuleProto, as the fake compiler was given it."""
COLLECTIVES = "double/collectives"
"""Marks a program that only nrt_load_collectives may load."""

HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI468s")
ITEM_SIZES = {"bool": 1, "bfloat16": 2, "complex64": 8, "complex128": 16}


def item_size(dtype: str) -> int:
    """Bytes of one element of a dtype by its PyTorch name, e.g. float8_e5m2 or int64."""
    if dtype in ITEM_SIZES:
        return ITEM_SIZES[dtype]
    digits = dtype.removeprefix("u").removeprefix("int").removeprefix("float").partition("_")[0]
    return int(digits) // 8


@dataclass(frozen=True)
class Tensor:
    """An input or output: `dtype` is PyTorch's name of it, `shape` row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return prod(self.shape) * item_size(self.dtype)


def definition(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, object]:
    """The content of a subgraph's def.json."""
    variables: dict[str, object] = {}
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            variables[tensor.name] = {
                "type": kind,
                "var_id": len(variables) + 1,
                "size": tensor.size,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
            }
    variables["scratch"] = {"type": "tmp-buf", "var_id": len(variables) + 1, "size": 64}
    return {"var": variables}


def tarball(members: Mapping[str, bytes], compress: bool = True) -> bytes:
    """A tar of `members`, the same bytes for the same members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), compresslevel=1, mtime=0) if compress else buffer.getvalue()


def header(data: bytes, *, name: str = "graph", lnc: int = 2, cores: int = 1, compiler: str = "2.27.5334.0+f702b353") -> bytes:
    """The 1024 bytes before the tarball `data`."""
    digest = hashlib.sha256(data).digest()
    fields = (2, 1024, len(data), 2, 0, compiler.encode(), cores, digest, digest[:16], name.encode(), cores, bytes([cores]), 0, lnc, b"")
    return HEADER.pack(*fields)


def write_neff(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    members: Mapping[str, bytes] | None = None,
    name: str = "graph",
    lnc: int = 2,
    cores: int = 1,
    compiler: str = "2.27.5334.0+f702b353",
    compress: bool = True,
) -> bytes:
    """A NEFF with these inputs and outputs; `members` are further files of the tarball."""
    files = {
        "kelf-a.json": json.dumps({"version": "1.0", "name": name, "graphs": ["sg00"]}).encode(),
        "sg00/def.json": json.dumps(definition(inputs, outputs)).encode(),
        **(members or {}),
    }
    data = tarball(files, compress)
    return header(data, name=name, lnc=lnc, cores=cores, compiler=compiler) + data
