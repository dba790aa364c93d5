"""Layers: read-only cache directories below the writable one, such as a warm cache baked into a container image.

They are searched in the order given, after the writable directory and before the remote. A hit is served from where it lies, not
copied: a layer is as near as the writable directory, and a copy would take its room twice. Nothing is ever written to a layer, so a bad
entry of one stays there; it is passed over, and what is made in its place goes to the writable directory, which is asked first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from neuron_dynamo.cache.counters import count
from neuron_dynamo.cache.entry import Artifact, BadEntry
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.trouble import BAD_ENTRY, warn_once

_shunned: set[str] = set()


class Layers:
    """Read-only cache directories, nearest first. Trouble with one costs a CacheWarning for each process and layer."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._stores = [LocalStore(root) for root in roots]

    def __bool__(self) -> bool:
        return bool(self._stores)

    def read(self, key: CacheKey) -> Artifact | None:
        """The verified artifact of `key` in the first layer that has a good one."""
        for store in self._stores if key.digest not in _shunned else ():
            place = f"cache layer {store.root}"
            try:
                artifact = store.read(key)
                if artifact is None and not store.root.is_dir():
                    warn_once(place, "directory", "it is not there")
            except BadEntry as error:
                count("quarantined")
                warn_once(place, BAD_ENTRY, f"entry {key.digest} is bad and was ignored: {error}")
            except OSError as error:
                count("errors")
                warn_once(place, "directory", f"{error}; work goes on without it")
            else:
                if artifact is not None:
                    return artifact
        return None

    def peek(self, key: CacheKey) -> Artifact | None:
        """What `read` returns; counts and warns nothing."""
        for store in self._stores if key.digest not in _shunned else ():
            with contextlib.suppress(BadEntry, OSError):
                artifact = store.read(key)
                if artifact is not None:
                    return artifact
        return None

    @staticmethod
    def shun(key: CacheKey) -> None:
        """Not serve any layer's entry of `key` again in this process: it could not be loaded."""
        _shunned.add(key.digest)
