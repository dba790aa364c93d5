"""AbsentCompiler: without neuronx-cc, a machine runs what another machine's compiled and the cache holds."""

from __future__ import annotations

import threading
from pathlib import Path

from neuron_dynamo.compiler_flags import canonical_flags
from neuron_dynamo.compilers.base import Compiled
from neuron_dynamo.compilers.neuronx.arguments import arguments
from neuron_dynamo.compilers.neuronx.compiler import NeuronxCompiler
from neuron_dynamo.compilers.neuronx.find import Found
from neuron_dynamo.errors import CompilerMissingError
from neuron_dynamo.lowering.program import Program
from neuron_dynamo.options import Options

_lock = threading.Lock()
_remembered: dict[Options, Found] = {}


class AbsentCompiler(NeuronxCompiler):
    """Has the identity of the neuronx-cc that made the entries of the cache, loads them, and compiles nothing."""

    def __init__(self, options: Options, found: Found, why: CompilerMissingError) -> None:
        super().__init__(options, found)
        self._why = why

    def compile(self, program: Program) -> Compiled:
        raise CompilerMissingError(
            f"target {self._target.name!r} needs its compiler for a graph that the cache lacks: {self._why.what}; the cache was looked "
            f"through for what {self.name} {self._found.version} compiled",
            remedy=f"warm the cache on a machine that has the compiler, or {self._why.remedy}",
        )


def absent_compiler(options: Options, why: CompilerMissingError) -> AbsentCompiler | None:
    """Stands in for the missing compiler where the cache holds entries for the target of `options`, else None.

    It is the maker of the newest one that was compiled with the same arguments, or else of the newest: then all that is asked for
    misses, and the miss names the arguments. Once found, it stays the same for this process.

    Raises CompilerMissingError for a compiler that option 'compiler' names: whoever names one wants that one, and is told that it is not
    there with a full cache as with an empty one.
    """
    if options.cache in ("off", "refresh"):
        return None
    with _lock:
        found = _remembered.get(options) or _maker(options)
        if found is None:
            return None
        _remembered[options] = found
    if options.compiler is not None:
        raise CompilerMissingError(
            f"target {options.target!r} needs the compiler that option 'compiler' names: {why.what}",
            remedy=f"leave the option (or NEURON_DYNAMO_COMPILER) out, and what {NeuronxCompiler.name} {found.version} left in the cache "
            f"runs without a compiler; or {why.remedy}",
        ) from why
    return AbsentCompiler(options, found, why)


def _maker(options: Options) -> Found | None:
    from neuron_dynamo.cache.makers import artifact_keys

    newest: Found | None = None
    for key in artifact_keys(options, NeuronxCompiler.name):
        parts = dict(key.parts)
        found = Found(Path(NeuronxCompiler.name), parts.get("compiler.version", ""), parts.get("compiler.program", ""))
        if parts.get("compiler.arguments") == canonical_flags(arguments(options, found.release)):
            return found
        newest = newest or found
    return newest
