"""A NEFF laid out as documented: the 1024-byte header, then a tar archive, with a program inside in place of machine code.

Of the archive, `kelf-a.json` and `<subgraph>/def.json` are the vendor's names; `program.hlo.pb` (or `program.mlir`) and `tensors.json`
(names, NRT dtypes, shapes, aliases) are this double's own, for the double of libnrt that runs it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
from typing import Any

HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI468s")
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 16: 2, 19: 1, 20: 1, 28: 1, 29: 1}
NRT = {1: 3, 2: 2, 3: 4, 4: 8, 5: 12, 6: 3, 7: 5, 8: 9, 9: 1, 10: 7, 11: 10, 16: 6, 19: 2, 20: 2, 28: 2, 29: 2}
"""nrt_dtype_t of XLA's element types: bool as uint8, float8 as int8, as the runtime reports them."""
SUFFIX = ".must_alias_input"


def write(module: Any, program: bytes, suffix: str, flags: dict[str, str], alias_names: bool = False) -> bytes:
    """The NEFF of a parsed HLO module; `program` is packed as it is."""
    lnc = int(flags.get("--lnc", "2" if flags["--target"] in ("trn2", "trn3") else "1"))
    tensors = _tensors(module, alias_names)
    table = {
        tensor["name"]: {"type": tensor["usage"], "var_id": number, "size": tensor["size"], "file_name": ""}
        for number, tensor in enumerate((*tensors["inputs"], *tensors["outputs"]))
    }
    subgraph = "nc00/sg00" if lnc == 2 else "sg00"
    files = {
        "kelf-a.json": json.dumps({"version": "1.0", "graphs": [subgraph], "target": flags["--target"]}).encode(),
        f"{subgraph}/def.json": json.dumps({"name": "sg00", "var": table}).encode(),
        "tensors.json": json.dumps(tensors).encode(),
        f"program.hlo{suffix}" if suffix == ".pb" else f"program{suffix}": program,
    }
    body = archive(files, compress="--enable-fast-loading-neuron-binaries" not in flags)
    return header(body, lnc) + body


def archive(files: dict[str, bytes], *, compress: bool = True) -> bytes:
    """A tar archive of `files`, the same bytes each time."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(stream.getvalue(), mtime=0) if compress else stream.getvalue()


def header(body: bytes, lnc: int, *, major: int = 2, name: bytes = b"fake.neff") -> bytes:
    """The 1024 bytes before the archive. The hash's algorithm is unpublished: this is SHA-256 of the archive."""
    digest = hashlib.sha256(body).digest()
    return HEADER.pack(2, 1024, len(body), major, 0, b"fake", 1, digest, digest[:16], name, 1, b"\x01", 0, lnc, b"")


def _tensors(module: Any, alias_names: bool) -> dict[str, Any]:
    (entry,) = [computation for computation in module.computations if computation.id == module.entry_computation_id]
    parameters = sorted((i for i in entry.instructions if i.opcode == "parameter"), key=lambda i: i.parameter_number)
    (root,) = [instruction for instruction in entry.instructions if instruction.id == entry.root_id]
    results = list(root.shape.tuple_shapes) if root.shape.element_type == 13 else [root.shape]
    aliases = {
        alias.parameter_number: (alias.output_shape_index[0] if alias.output_shape_index else 0)
        for alias in module.input_output_alias.entries
    }
    inputs = [_attribute(p, "neff_input_names", f"input{p.parameter_number}") for p in parameters]
    outputs = _attribute(root, "neff_output_names", ",".join(f"output{index}" for index in range(len(results)))).split(",")
    if alias_names:
        inputs = [name + SUFFIX if number in aliases else name for number, name in enumerate(inputs)]
    return {
        "inputs": [_tensor(name, "input", p.shape) for name, p in zip(inputs, parameters, strict=True)],
        "outputs": [_tensor(name, "output", shape) for name, shape in zip(outputs, results, strict=True)] if results else [],
        "aliases": [[output, parameter] for parameter, output in sorted(aliases.items())],
    }


def _attribute(instruction: Any, key: str, default: str) -> str:
    return next((entry.value for entry in instruction.frontend_attributes.map if entry.key == key), default)


def _tensor(name: str, usage: str, shape: Any) -> dict[str, Any]:
    size = SIZES[shape.element_type]
    for dim in shape.dimensions:
        size *= dim
    return {"name": name, "usage": usage, "size": size, "dtype": NRT[shape.element_type], "shape": list(shape.dimensions)}
