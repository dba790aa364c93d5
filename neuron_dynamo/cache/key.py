"""CacheKey: named parts, and the hash derived from them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neuron_dynamo.cache.toolchain import lowering_digest, toolchain_versions
from neuron_dynamo.compiler_flags import canonical_flags
from neuron_dynamo.compilers.base import Compiler
from neuron_dynamo.options import Options
from neuron_dynamo.target import Target

FORMAT = 1
"""Version of the entry layout and of the key; an entry of another version is never used."""


@dataclass(frozen=True)
class CacheKey:
    """Everything that an artifact depends on, as (name, value) pairs in reading order.

    `digest` does not depend on the order of the parts. Raises ValueError if two parts share a name.
    """

    parts: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"duplicate part in cache key: {', '.join(names)}")

    @property
    def kind(self) -> str:
        """What lies under the key: "artifact" (of a compiler), "failure" (of one) or "program" (of the lowering)."""
        return dict(self.parts).get("kind", "artifact")

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) over the parts."""
        return hashlib.sha256(json.dumps(sorted(self.parts)).encode()).hexdigest()

    def differing(self, other: CacheKey) -> tuple[tuple[str, str | None, str | None], ...]:
        """(name, own value, other's value) of each part that differs, in reading order; None where a side lacks the part."""
        own, theirs = dict(self.parts), dict(other.parts)
        return tuple((name, own.get(name), theirs.get(name)) for name in own | theirs if own.get(name) != theirs.get(name))

    def to_json(self) -> list[list[str]]:
        return [list(part) for part in self.parts]

    @staticmethod
    def from_json(data: Any) -> CacheKey:
        """The key that `to_json` described. Raises ValueError or TypeError if `data` is something else."""
        parts = tuple((name, value) for name, value in data)
        if not all(isinstance(text, str) for part in parts for text in part):
            raise TypeError("the parts of a cache key are strings")
        return CacheKey(parts)


def program_key(program_digest: str, target: Target, options: Options, compiler: Compiler) -> CacheKey:
    """Key of the artifact that `compiler` makes for `target` of the Program with `program_digest` (64 hex digits)."""
    return CacheKey(
        (
            ("kind", "artifact"),
            ("program", program_digest),
            ("target", target.name),
            ("lnc", str(target.lnc)),
            ("compiler", compiler.name),
            *sorted((f"compiler.{name}", value) for name, value in compiler.identity()),
            ("compiler_args", canonical_flags(options.compiler_args)),
            ("precision", options.precision),
            ("lowering", lowering_digest()),
            *toolchain_versions(),
            ("format", str(FORMAT)),
        )
    )
