"""Who made what the cache holds: a machine without a compiler can only ask for what one elsewhere has compiled."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dynamo.cache import mega_cache
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.listing import entries
from neuron_dynamo.options import Options


def artifact_keys(options: Options, compiler: str) -> Iterator[CacheKey]:
    """Keys of the artifacts that `compiler` made for the target of `options`: those of the cache directory, newest first, then those of
    a bundle that PyTorch loaded, then those of each layer, newest first. The remote is not asked, which would mean to list it."""
    target = options.resolved_target
    wanted = {"kind": "artifact", "target": target.name, "lnc": str(target.lnc), "compiler": compiler}
    return (key for key in _keys(options) if wanted.items() <= dict(key.parts).items())


def _keys(options: Options) -> Iterator[CacheKey]:
    yield from (entry.key for entry in entries(options.cache_path, kind="artifact"))
    yield from mega_cache.loaded_keys()
    for layer in options.layer_paths:
        yield from (entry.key for entry in entries(layer, kind="artifact"))
