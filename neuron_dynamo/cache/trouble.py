"""Cache trouble never stops a job: each kind of it costs a process one CacheWarning for each place, and work goes on."""

from __future__ import annotations

import logging
import threading
import warnings

from neuron_dynamo.errors import CacheWarning

BAD_ENTRY = "bad entry"
"""The subject of every damaged entry: a damaged disk has many."""

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_warned: set[tuple[str, str]] = set()


def warn_once(place: str, subject: str, text: str) -> None:
    """Warn that something about `place` (as in "cache remote s3://...") is wrong; if this process has warned of its `subject`, log it."""
    with _lock:
        told = (place, subject) in _warned
        _warned.add((place, subject))
    if told:
        _log.info("%s: %s", place, text)
        return
    warnings.warn(f"ND130: {place}: {text}", CacheWarning, stacklevel=3)
