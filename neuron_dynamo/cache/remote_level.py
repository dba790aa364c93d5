"""RemoteLevel: policy over a RemoteStore. It is waited for while it works, and left alone for a while when it fails."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from neuron_dynamo.cache.counters import count
from neuron_dynamo.cache.entry import Artifact, BadEntry
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.remote import RemoteError, RemoteStore
from neuron_dynamo.cache.trouble import BAD_ENTRY, warn_once
from neuron_dynamo.options import Options

SHORTEST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds for which a remote that failed is not asked again: doubled from failure to failure, forgotten with the first answer."""

LOSS = 10.0
"""The pause is also no shorter than this many times what the failure took, so a dead remote cannot cost a job a tenth of its time."""

T = TypeVar("T")


class RemoteLevel:
    """The remote as `options` set it. Never raises but what warnings turned into errors raise; thread-safe.

    A failing remote costs one CacheWarning for each process; one that refuses uploads is read all the same.
    """

    def __init__(self, store: RemoteStore, uploads: bool) -> None:
        self._store, self._uploads = store, uploads
        self._lock = threading.Lock()
        self._failures, self._asleep_until = 0, 0.0
        self._bad: set[str] = set()

    @property
    def url(self) -> str:
        return self._store.url

    def read(self, key: CacheKey) -> Artifact | None:
        """The verified artifact of `key`, once the remote has answered; None if it has none, or a bad one, or fails."""
        if key.digest in self._bad:
            return None
        try:
            return self._ask(lambda: self._store.read(key), None)
        except BadEntry as error:
            self.reject(key, str(error))
            return None

    def has(self, key: CacheKey) -> bool:
        """Whether the remote holds something under `key`; False where it fails."""
        return key.digest not in self._bad and self._ask(lambda: self._store.has(key), False)

    def write(self, key: CacheKey, artifact: Artifact, *, replace: bool = False) -> None:
        """Upload the entry, where uploads are wanted and the remote has none or a bad one, or it is to be replaced."""
        if not self._uploads:
            return
        replace = replace or key.digest in self._bad
        if self._ask(lambda: self._store.write(key, artifact, replace=replace), False, uploading=True):
            self._bad.discard(key.digest)
            count("uploaded")

    def reject(self, key: CacheKey, reason: str) -> None:
        """Not serve the remote's entry of `key` again in this process; the next upload takes its place."""
        self.shun(key)
        count("quarantined")
        warn_once(self._place, BAD_ENTRY, f"entry {key.digest} is bad and was ignored: {reason}")

    def shun(self, key: CacheKey) -> None:
        """What `reject` does, without a word: its copy here was rejected already."""
        self._bad.add(key.digest)

    @property
    def _place(self) -> str:
        return f"cache remote {self.url}"

    def _ask(self, call: Callable[[], T], otherwise: T, *, uploading: bool = False) -> T:
        if time.monotonic() < self._asleep_until:
            return otherwise
        start = time.monotonic()
        try:
            answer = call()
        except RemoteError as error:
            self._failed(error, time.monotonic() - start, uploading)
            return otherwise
        with self._lock:
            self._failures = 0
        return answer

    def _failed(self, error: RemoteError, seconds: float, uploading: bool) -> None:
        count("errors")
        if uploading and error.denied:
            self._uploads = False
            warn_once(
                self._place, "upload", f'{error}; nothing more is uploaded by this process (cache_uploads="off" says so from the start)'
            )
            return
        with self._lock:
            pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE * 2**self._failures, LOSS * seconds))
            self._failures += 1
            self._asleep_until = time.monotonic() + pause
        remedy = f"; what to do: pip install '{error.missing}' (or neuron-dynamo[remote])" if error.missing else ""
        if error.denied:
            remedy = (
                "; what to do: check the credentials; S3 also denies a missing entry to those who may not list the bucket (s3:ListBucket)"
            )
        warn_once(
            self._place, "failure", f"{error}; work goes on without it, and it is asked again after {pause:.0f} s at the earliest{remedy}"
        )


_levels: dict[tuple[object, ...], RemoteLevel] = {}
_levels_lock = threading.Lock()


def remote_for(options: Options) -> RemoteLevel | None:
    """The process's one RemoteLevel of `options.cache_remote`, or None where there is none."""
    if not options.cache_remote or options.cache == "off":
        return None
    uploads = options.cache_uploads == "on" and options.cache in ("on", "refresh")
    address = (options.cache_remote, options.cache_remote_options, options.cache_remote_timeout, uploads)
    with _levels_lock:
        if address not in _levels:
            storage = json.loads(options.cache_remote_options or "{}")
            _levels[address] = RemoteLevel(RemoteStore(options.cache_remote, options.cache_remote_timeout, storage), uploads)
        return _levels[address]
