"""`gc`: what a user asks to have removed from a cache directory. What is removed on its own, and how, is eviction.py's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from neuron_dynamo.cache import layout
from neuron_dynamo.cache.eviction import Collected, Removed, collect
from neuron_dynamo.cache.listing import cache_root
from neuron_dynamo.cache.usage import folder_size
from neuron_dynamo.units import parse_size, parse_span


def gc(
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    max_size: int | str | None = None,
    max_age: float | str | None = None,
    quarantine: bool = False,
    dry_run: bool = False,
) -> Collected:
    """Remove from the cache directory the entries that nobody used for `max_age` (seconds, or `30d`), then the least recently used ones
    until they take at most `max_size` (bytes, or `10GB`); None is no limit. Drafts and locks of dead processes always go.

    Bad entries that were put aside go with `quarantine` only, whatever their age and size. With `dry_run`, nothing is touched.
    Entries of a newer format stay, as does a folder with anything that is not ours. Safe while jobs run: what they read
    stays whole for them. Raises InspectError for a limit that is not one, OSError where the directory cannot be read.
    """
    max_size = parse_size(max_size) if isinstance(max_size, str) else max_size
    max_age = parse_span(max_age) if isinstance(max_age, str) else max_age
    root = cache_root(cache_dir)
    put_aside = tuple(_quarantined(root, dry_run)) if quarantine else ()
    outcome = collect(root, max_size, max_age, dry_run)
    return dataclasses.replace(outcome, removed=(*put_aside, *outcome.removed))


def _quarantined(root: Path, dry_run: bool) -> Iterator[Removed]:
    try:
        paths = sorted((root / layout.QUARANTINE).iterdir())
    except OSError:
        return
    for path in paths:
        if not layout.DRAFT.fullmatch(path.name) or not layout.is_ours(path):
            continue
        size = folder_size(path)
        if not dry_run:
            layout.remove_flat(path)
            if os.path.lexists(path):
                continue
        yield Removed("quarantined", path, size, "asked for")
