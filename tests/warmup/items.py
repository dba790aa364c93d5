"""Items of a plan that no graph stands behind."""

from __future__ import annotations

from pathlib import Path

from neuron_dynamo.lowering.program import Program
from neuron_dynamo.options import Options
from neuron_dynamo.recording import Wanted
from neuron_dynamo.warmup.planning import Item
from tests.cache.samples import SIGNATURE, key


def item(
    folder: Path, name: str, options: Options | None = None, *, size: int = 100, seconds: float | None = None, level: str = "miss"
) -> Item:
    """An item whose graph is called `name`, and whose program is `size` bytes that no compiler takes."""
    program = Program(name.encode().ljust(size, b"."), SIGNATURE)
    path = folder / program.digest
    path.write_bytes(program.stablehlo)
    wanted = Wanted(key(program.digest), SIGNATURE, path)
    return Item(name, "inference", (name,), options or Options(), wanted, size, level, seconds)
