"""Items whose programs the host's compiler takes; made without torch.compile."""

from __future__ import annotations

from pathlib import Path

from neuron_dynamo.cache import program_key
from neuron_dynamo.compilers import compiler_for
from neuron_dynamo.options import Options
from neuron_dynamo.recording import CollectedGraph, Wanted
from tests.host_programs import add, spec


def graphs(folder: Path, options: Options, count: int) -> list[CollectedGraph]:
    """`count` graphs of one small program each."""
    folder.mkdir(exist_ok=True)
    made = []
    for number in range(count):
        program = add(spec(number + 1))
        path = folder / program.digest
        path.write_bytes(program.stablehlo)
        key = program_key(program.digest, options.resolved_target, options, compiler_for(options))
        wanted = Wanted(key, program.signature, path)
        made.append(CollectedGraph(f"add_{number + 1}", "inference", "", options, (wanted,), 1, 0))
    return made
