"""The compile cache: CacheKey (named parts) -> Artifact. The only room that touches the cache directory."""

from neuron_dynamo.cache.counters import CacheStats, stats
from neuron_dynamo.cache.entry import PROGRAM, Artifact
from neuron_dynamo.cache.key import CacheKey, program_key
from neuron_dynamo.cache.store import Cache, Lookup

__all__ = ["PROGRAM", "Artifact", "Cache", "CacheKey", "CacheStats", "Lookup", "program_key", "stats"]
