"""Compilers: Program -> artifact. `compiler_for` picks the one of a target."""

from __future__ import annotations

from neuron_dynamo.compilers.base import Compiler
from neuron_dynamo.errors import CompilerMissingError
from neuron_dynamo.options import Options


def compiler_for(options: Options) -> Compiler:
    """The compiler of `options.target`.

    Raises CompilerMissingError where this machine has none, unless `emulate="always"`, or the cache holds what one elsewhere compiled;
    OptionError for bad compiler arguments.
    """
    if options.resolved_target.is_host:
        from neuron_dynamo.compilers.host import HostCompiler

        return HostCompiler()
    from neuron_dynamo.compilers.neuronx import EmulatingCompiler, NeuronxCompiler, absent_compiler

    try:
        return NeuronxCompiler(options)
    except CompilerMissingError as error:
        if options.emulate == "always":
            return EmulatingCompiler(options, error.what)
        absent = absent_compiler(options, error)
        if absent is not None:
            return absent
        raise CompilerMissingError(
            f"target {options.target!r} needs its compiler: {error.what}",
            remedy=f'{error.remedy}; options={{"emulate": "always"}} runs the programs on the host, uncompiled for {options.target}',
        ) from error
