"""`push`: what a cache directory holds, sent to the remote: what was compiled while that was down or not yet there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from neuron_dynamo.cache.entry import BadEntry
from neuron_dynamo.cache.listing import cache_root, entries
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cache.remote import RemoteError, RemoteStore
from neuron_dynamo.errors import InspectError
from neuron_dynamo.options import Options


@dataclass(frozen=True)
class Pushed:
    """Digests of the entries that were uploaded, how many the remote had already, and (digest, reason) of the ones that cannot be used."""

    remote: str
    sent: tuple[str, ...]
    present: int
    skipped: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {"remote": self.remote, "sent": list(self.sent), "present": self.present, "skipped": list(map(list, self.skipped))}


def push(
    remote: str | None = None, cache_dir: str | os.PathLike[str] | None = None, *, target: str | None = None, replace: bool = False
) -> Pushed:
    """Upload the entries of the cache directory, all or those for `target`, to the URL `remote` (that of the options by default).

    What the remote has stays, unless `replace`. Remembered failures are not sent. Raises InspectError where no remote is named, or where
    it fails; what had been sent until then stays there, and another call sends the rest.
    """
    options = Options.resolve({"cache_remote": remote} if remote is not None else None)
    if not options.cache_remote:
        raise InspectError("no remote is named", remedy="give its URL, or set NEURON_DYNAMO_CACHE_REMOTE")
    store = RemoteStore(options.cache_remote, options.cache_remote_timeout, json.loads(options.cache_remote_options or "{}"))
    sent: list[str] = []
    skipped: list[tuple[str, str]] = []
    present = 0
    local = LocalStore(cache_root(cache_dir))
    for entry in entries(local.root, target=target):
        if entry.kind == "failure":
            continue
        try:
            if not replace and store.has(entry.key):
                present += 1
                continue
            artifact = local.read(entry.key)
            if artifact is not None and store.write(entry.key, artifact, replace=replace):
                sent.append(entry.digest)
        except (BadEntry, OSError) as error:
            skipped.append((entry.digest, str(error)))
        except RemoteError as error:
            raise InspectError(
                f"{store.url} failed after {len(sent)} uploads: {error}",
                remedy=f"pip install '{error.missing}'" if error.missing else "see to it, and push again: what is there is not sent twice",
            ) from error
    return Pushed(store.url, tuple(sent), present, tuple(skipped))
