"""Loading what the cache found, such that an entry which kills its process does so at most once (see probe.py)."""

from __future__ import annotations

from neuron_dynamo.cache import probe
from neuron_dynamo.cache.entry import Artifact
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.store import Cache, Lookup
from neuron_dynamo.compilers.base import Compiler
from neuron_dynamo.errors import CompilerError
from neuron_dynamo.lowering.program import Signature
from neuron_dynamo.runtime.base import Executable


def load(compiler: Compiler, found: Lookup, cache: Cache, key: CacheKey, signature: Signature | None = None) -> Executable | None:
    """What the cache has `found` made runnable; None, and the entry put aside, where that is refused or cannot be.

    `signature` is that of the Program, where it is known; an entry of another one is refused.
    """
    assert found.artifact is not None
    try:
        if signature is not None and found.artifact.signature != signature:
            raise CompilerError("its inputs and outputs are not those of the program")
        if found.level == "memory":
            return compiler.load(found.artifact.payload, found.artifact.signature)
        return _load_with_care(compiler, found.artifact, found.level == "remote", cache, key)
    except CompilerError as error:
        cache.reject(key, str(error))
        return None


def _load_with_care(compiler: Compiler, artifact: Artifact, foreign: bool, cache: Cache, key: CacheKey) -> Executable:
    root = cache.marks
    suspect = root is not None and probe.has_killed(root, key.digest)
    if (foreign or suspect) and isinstance(compiler, probe.Probed):
        part = compiler.dangerous_part(artifact.payload)
        survived = part is None or probe.survives(*part)
        if root is not None:
            probe.forgive(root, key.digest)
        if not survived:
            raise CompilerError("its bytes are intact, but a process that loads it dies")
    if root is None:
        return compiler.load(artifact.payload, artifact.signature)
    with probe.marked(root, key.digest):
        return compiler.load(artifact.payload, artifact.signature)
