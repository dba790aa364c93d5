"""Time that PyTorch spends before our own stages: Dynamo's trace of a frame, and AOTAutograd around what we do within it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from torch._dynamo.utils import get_metrics_context

from neuron_dynamo.cache.counters import spend


class _Clock(threading.local):
    """Seconds of our own work in this thread; the frame that Dynamo is compiling, by its start, and when we last returned to it."""

    own = 0.0
    frame = 0
    left = 0


_clock = _Clock()


@contextlib.contextmanager
def own_work() -> Iterator[None]:
    """Around what the backend does itself while AOTAutograd waits."""
    before, start = _clock.own, time.perf_counter()
    try:
        yield
    finally:
        _clock.own = before + time.perf_counter() - start


@contextlib.contextmanager
def backend_call() -> Iterator[None]:
    """Around AOTAutograd: counts as `trace` the time since Dynamo began with the frame, as `aot` what is inside but not own work."""
    frame = getattr(get_metrics_context(), "_start_time_ns", 0)
    if frame:
        since = _clock.left if frame == _clock.frame else frame
        spend("trace", max(0.0, (time.time_ns() - since) / 1e9))
    own, start = _clock.own, time.perf_counter()
    try:
        yield
    finally:
        spend("aot", time.perf_counter() - start - (_clock.own - own))
        _clock.frame, _clock.left = frame, time.time_ns()
