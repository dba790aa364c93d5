"""The host target's compiler: XLA for this machine's CPU."""

from __future__ import annotations

import json
import zlib
from typing import Any

from neuron_dynamo import xla
from neuron_dynamo.errors import CompilerError
from neuron_dynamo.lowering.program import Program, Signature
from neuron_dynamo.runtime.host import HostExecutable

_MAGIC = b"NDHOST1\n"


class HostCompiler:
    """Compiles Programs with XLA CPU through jaxlib; fulfils compilers.base.Compiler.

    An artifact is one line of magic, one line of JSON (what the machine code needs: CPU, jaxlib; and its checksum), then XLA's
    serialised executable. `load` refuses an artifact made for another CPU before XLA maps its code, which would run
    until the first instruction that this CPU lacks.
    """

    name = "xla-cpu"

    def identity(self) -> tuple[tuple[str, str], ...]:
        cpu = xla.cpu_features()
        return (
            ("compiler", self.name),
            ("jaxlib", xla.jaxlib_version()),
            ("cpu", f"{cpu.name} {cpu.digest}"),
            ("cpu_flags", " ".join(cpu.flags)),
            ("xla_flags", xla.code_flags()),
        )

    def compile(self, program: Program) -> bytes:
        executable = xla.compile(program.stablehlo)
        code = xla.serialize(executable)
        header = {**_machine(), "donated": xla.donated_parameters(executable), "crc32": zlib.crc32(code), "size": len(code)}
        return _MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + code

    def load(self, artifact: bytes, signature: Signature) -> HostExecutable:
        header, code = _checked(artifact)
        return HostExecutable(xla.deserialize(code), signature, tuple(header["donated"]))

    def dangerous_part(self, artifact: bytes) -> tuple[str, bytes]:
        """XLA maps machine code into the process; what another one can try of it (see cache/probe.py). Raises CompilerError as `load`."""
        return "neuron_dynamo.xla:deserialize", _checked(artifact)[1]


def _checked(artifact: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and code of an artifact that is whole and was made for this machine. Raises CompilerError."""
    header, code = _parse(artifact)
    for key, here in _machine().items():
        if header[key] != here:
            raise CompilerError(
                f"the artifact was made for {key} {header[key]}, this process has {here}",
                remedy="compile the graph again on this machine",
            )
    if len(code) != header["size"] or zlib.crc32(code) != header["crc32"]:
        raise CompilerError("the artifact is corrupt: its checksum does not match", remedy="compile the graph again")
    return header, code


def _machine() -> dict[str, str]:
    cpu = xla.cpu_features()
    return {"cpu": f"{cpu.name} {cpu.digest}", "jaxlib": xla.jaxlib_version()}


def _parse(artifact: bytes) -> tuple[dict[str, Any], bytes]:
    line, newline, code = artifact[len(_MAGIC) :].partition(b"\n")
    if artifact.startswith(_MAGIC) and newline:
        try:
            header = json.loads(line)
            if header.keys() >= {"cpu", "jaxlib", "crc32", "size"} and all(type(number) is int for number in header["donated"]):
                return header, code
        except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
            pass
    raise CompilerError("the artifact is corrupt: it does not begin as a host artifact does", remedy="compile the graph again")
