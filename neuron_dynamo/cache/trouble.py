"""Cache trouble never stops a job: each kind of it costs a process one CacheWarning for each place, and work goes on."""

from __future__ import annotations

import threading
import warnings

from neuron_dynamo.errors import CacheWarning

_lock = threading.Lock()
_warned: set[tuple[str, str]] = set()


def warn_once(place: str, subject: str, text: str) -> None:
    """Warn that something about `place` (as in "cache remote s3://...") is wrong, unless this process has said so of this `subject`."""
    with _lock:
        if (place, subject) in _warned:
            return
        _warned.add((place, subject))
    warnings.warn(f"ND130: {place}: {text}", CacheWarning, stacklevel=3)
