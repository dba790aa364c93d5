"""Reading files that somebody else may have made: never through a link, never waiting on a pipe, never more than there can be."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from neuron_dynamo.cache.entry import MANIFEST, MAX_MANIFEST, BadEntry


def open_plain(path: Path | str, folder: int | None = None) -> IO[bytes]:
    """The file, below the open `folder` if one is given. Raises OSError; what it is `read_plain` looks at."""
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder), "rb")


def read_plain(file: IO[bytes], name: str, limit: int) -> bytes:
    """Contents of the open `file`. Raises BadEntry if it is no plain file, or longer than `limit` bytes."""
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise BadEntry(f"{name} is not a plain file")
    if status.st_size > limit:
        raise BadEntry(f"{name} is longer than it should be")
    return file.read()


def read_manifest(folder: Path) -> bytes:
    """Bytes of the manifest of the entry in `folder`. Raises OSError, BadEntry."""
    with open_plain(folder / MANIFEST) as file:
        return read_plain(file, MANIFEST, MAX_MANIFEST)
