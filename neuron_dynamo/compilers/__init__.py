"""Compilers: Program -> artifact. `compiler_for` picks the one of a target."""

from __future__ import annotations

from neuron_dynamo.compilers.base import Compiler
from neuron_dynamo.errors import CompilerMissingError
from neuron_dynamo.options import Options


def compiler_for(options: Options) -> Compiler:
    """The compiler of `options.target`. Raises CompilerMissingError for a target that this machine cannot compile for."""
    if options.resolved_target.is_host:
        from neuron_dynamo.compilers.host import HostCompiler

        return HostCompiler()
    raise CompilerMissingError(
        f"there is no compiler for target {options.target!r} in this version: the neuronx-cc driver is not implemented yet",
        remedy='use options={"target": "host"}; `neuron_dynamo.inspect` shows the StableHLO for any target',
    )
