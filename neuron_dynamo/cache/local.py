"""LocalStore: entries in one directory of this machine, published atomically. Knows bytes and files, no policy.

<root>/v1/<first 2 hex of digest>/<digest>/{manifest.json, artifact.bin, ...}
<root>/tmp/          entries being written; what a killed process leaves here is never read
<root>/quarantine/   bad entries, kept for their owner to look at
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from neuron_dynamo.cache.entry import MANIFEST, Artifact, BadEntry, decode_entry, decode_manifest, encode_entry
from neuron_dynamo.cache.key import FORMAT, CacheKey

_ALREADY_THERE = (errno.EEXIST, errno.ENOTEMPTY)


class LocalStore:
    """Entries below `root`, shared by any number of threads and processes. Methods raise OSError where the directory fails."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries = root / f"v{FORMAT}"

    def entry_path(self, key: CacheKey) -> Path:
        return self._entries / key.digest[:2] / key.digest

    def read(self, key: CacheKey) -> Artifact | None:
        """The verified artifact of `key`, or None if there is none. Raises BadEntry if what lies there cannot be used."""
        path = self.entry_path(key)
        try:
            # Files are opened through the directory: one entry is seen whole, even if another takes its place meanwhile.
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            if os.path.lexists(path):
                raise BadEntry("it is not a directory") from error
            raise
        try:
            return decode_entry(key, lambda name: _read_file(folder, name))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise BadEntry(f"{error.filename} is missing") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BadEntry(f"{error.filename} is a symbolic link") from error
            raise
        finally:
            os.close(folder)

    def write(self, key: CacheKey, artifact: Artifact) -> None:
        """Publish the entry of `key` in one step. Where one is there already, that one stays."""
        path = self.entry_path(key)
        if path.is_dir():
            return
        self._make_folder(path.parent)
        draft = self._make_folder(self.root / "tmp") / _unique_name(key)
        os.mkdir(draft)
        files = encode_entry(key, artifact)
        try:
            for name, data in files.items():
                _write_file(draft / name, data)
            _sync_folder(draft)
            os.rename(draft, path)
        except OSError as error:
            _discard(draft, files)
            if error.errno not in _ALREADY_THERE:
                raise

    def quarantine(self, key: CacheKey) -> Path:
        """Move the entry of `key`, whatever it is, out of the way; returns where to."""
        destination = self._make_folder(self.root / "quarantine") / _unique_name(key)
        os.rename(self.entry_path(key), destination)
        return destination

    def stored_keys(self) -> Iterator[CacheKey]:
        """Keys of all entries whose manifest is intact, in no particular order."""
        for path in self._entries.glob(f"*/*/{MANIFEST}"):
            with contextlib.suppress(OSError, BadEntry, LookupError, TypeError, ValueError):
                yield CacheKey.from_json(decode_manifest(path.read_bytes())["key"])

    def _make_folder(self, path: Path) -> Path:
        if not path.is_dir():
            # Entries are code that runs: a root of our own making is its owner's alone.
            os.makedirs(self.root.parent, exist_ok=True)
            if not self.root.exists():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.root, 0o700)
            os.makedirs(path, exist_ok=True)
        return path


def _unique_name(key: CacheKey) -> str:
    return f"{key.digest}.{os.getpid()}.{uuid.uuid4().hex[:12]}"


def _read_file(folder: int, name: str) -> bytes:
    # Not to be led out of the store by a link, nor to wait on a pipe.
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
        return file.read()


def _write_file(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _discard(draft: Path, names: dict[str, bytes]) -> None:
    with contextlib.suppress(OSError):
        for name in names:
            (draft / name).unlink(missing_ok=True)
        draft.rmdir()
