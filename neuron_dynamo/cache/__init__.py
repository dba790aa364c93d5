"""The compile cache: CacheKey (named parts) -> Artifact. The only room that touches the cache directory.

What `neuron-dynamo cache` does is here too: `entries`, `show`, `usage`, `where`, `verify`, `gc`, `export`, `import_` and `push`; `stats`
counts what this process did with the cache.
"""

from neuron_dynamo.cache.bundle import export, import_
from neuron_dynamo.cache.collection import gc
from neuron_dynamo.cache.counters import CacheStats, stats
from neuron_dynamo.cache.entry import PROGRAM, Artifact
from neuron_dynamo.cache.explain import explain
from neuron_dynamo.cache.key import CacheKey, program_key
from neuron_dynamo.cache.listing import Entry, entries, show
from neuron_dynamo.cache.push import push
from neuron_dynamo.cache.selftest import selftest
from neuron_dynamo.cache.store import Cache, Lookup
from neuron_dynamo.cache.usage import usage, where
from neuron_dynamo.cache.verify import verify

__all__ = [
    "PROGRAM",
    "Artifact",
    "Cache",
    "CacheKey",
    "CacheStats",
    "Entry",
    "Lookup",
    "entries",
    "explain",
    "export",
    "gc",
    "import_",
    "program_key",
    "push",
    "selftest",
    "show",
    "stats",
    "usage",
    "verify",
    "where",
]
