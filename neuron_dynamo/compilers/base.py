"""The small protocol that every compiler fulfils: Program -> artifact bytes -> Executable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from neuron_dynamo.lowering.program import Program, Signature
from neuron_dynamo.runtime.base import Executable


@dataclass(frozen=True)
class Compiled:
    """What a compile leaves behind: the artifact, the compiler's own log, and further files to keep with it, by plain file name."""

    payload: bytes = field(repr=False)
    log: str = field(default="", repr=False)
    blobs: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(result: bytes | Compiled) -> Compiled:
        """The answer of `Compiler.compile` in its long form."""
        return result if isinstance(result, Compiled) else Compiled(result)


class Compiler(Protocol):
    """A target's compiler.

    `identity` names the compiler, its version and all that changes its output (flags, CPU features), as (name, value)
    pairs for the CacheKey. `compile` returns artifact bytes, or Compiled where there is more to keep; `load` makes
    the bytes runnable in this process.
    Both raise CompilerError; `load` raises it for bytes that are corrupt or were made for another machine.
    """

    name: str

    def identity(self) -> tuple[tuple[str, str], ...]: ...

    def compile(self, program: Program) -> bytes | Compiled: ...

    def load(self, artifact: bytes, signature: Signature) -> Executable: ...
