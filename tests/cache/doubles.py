"""Compilers that do what a test says, and graphs to give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuron_dynamo.lowering.program import Program
from neuron_dynamo.options import Options
from neuron_dynamo.report import GraphReport
from tests.cache.samples import SIGNATURE


def program(number: int = 0) -> Program:
    return Program(f"stablehlo {number}".encode(), SIGNATURE)


def report(name: str = "graph_0_forward") -> GraphReport:
    return GraphReport(name, "forward")


@dataclass
class Double:
    """A compiler of `version` whose artifact of a program is `made` of its StableHLO; `asked` are the programs it was run on."""

    version: str = "1"
    made: Callable[[bytes], bytes] = lambda stablehlo: b"code of " + stablehlo
    asked: list[bytes] = field(default_factory=list)
    loaded: list[bytes] = field(default_factory=list)
    name: str = "double"

    def identity(self) -> tuple[tuple[str, str], ...]:
        return (("compiler", self.name), ("version", self.version))

    def compile(self, program: Program) -> bytes:
        self.asked.append(program.stablehlo)
        return self.made(program.stablehlo)

    def load(self, artifact: bytes, signature: Any) -> bytes:
        run(artifact)
        self.loaded.append(artifact)
        return artifact

    def dangerous_part(self, artifact: bytes) -> tuple[str, bytes]:
        return "tests.cache.fatal:run", artifact


def run(artifact: bytes) -> None:
    """Loading, as the artifact says it goes."""
    from tests.cache import fatal

    fatal.run(artifact)


def options(root: Path | str, **given: Any) -> Options:
    return Options.resolve({"cache_dir": root, **given}, environ={})


def obtain(compiler: Double, number: int, options: Options) -> tuple[bytes, str]:
    """What `compile.obtain` makes of program `number`: the executable, and the level of the cache that had it."""
    import neuron_dynamo.compile as story

    before, story.compiler_for = story.compiler_for, lambda options: compiler
    try:
        executable, _, level = story.obtain(program(number), options, report())
    finally:
        story.compiler_for = before
    return executable, level
