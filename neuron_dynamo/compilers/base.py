"""The small protocol that every compiler fulfils: Program -> artifact bytes -> Executable."""

from __future__ import annotations

from typing import Protocol

from neuron_dynamo.lowering.program import Program, Signature
from neuron_dynamo.runtime.base import Executable


class Compiler(Protocol):
    """A target's compiler.

    `identity` names the compiler, its version and all that changes its output (flags, CPU features), as (name, value)
    pairs for the CacheKey. `compile` returns artifact bytes; `load` makes them runnable in this process.
    Both raise CompilerError; `load` raises it for bytes that are corrupt or were made for another machine.
    """

    name: str

    def identity(self) -> tuple[tuple[str, str], ...]: ...

    def compile(self, program: Program) -> bytes: ...

    def load(self, artifact: bytes, signature: Signature) -> Executable: ...
