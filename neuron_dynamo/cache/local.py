"""LocalStore: entries in one directory of this machine, published atomically. Knows bytes and files (see layout.py), no policy."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from neuron_dynamo.cache import layout
from neuron_dynamo.cache.entry import MANIFEST, Artifact, BadEntry, ForeignEntry, decode_entry, decode_manifest, encode_entry
from neuron_dynamo.cache.eviction import touch
from neuron_dynamo.cache.exchange import exchange
from neuron_dynamo.cache.key import FORMAT, CacheKey
from neuron_dynamo.cache.locks import FileLock
from neuron_dynamo.cache.plain import open_plain, read_manifest, read_plain
from neuron_dynamo.cache.trust import Trust

_ATTEMPTS = 5
_ALREADY_THERE = (errno.EEXIST, errno.ENOTEMPTY)


class LocalStore:
    """Entries below `root`, shared by any number of threads and processes.

    Methods raise OSError where the directory fails, or is one to which everybody may write (see trust.py).
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def entry_path(self, key: CacheKey) -> Path:
        return layout.entry_folder(self.root, key.digest)

    def lock_path(self, key: CacheKey) -> Path:
        """File of the lock that the maker of an entry holds; makes its folder. Raises OSError."""
        return layout.make_folder(self.root, self.root / layout.LOCKS) / f"{key.digest}.lock"

    def identity(self, key: CacheKey) -> tuple[int, int] | None:
        """What tells the entry of `key` from one that takes its place; None if there is none."""
        return _identity(self.entry_path(key))

    def read(self, key: CacheKey, note_use: bool = False) -> Artifact | None:
        """The verified artifact of `key`, or None if there is none. `note_use` keeps the entry from being evicted soon.

        Raises BadEntry if what lies there cannot be used, ForeignEntry if it is also not ours to remove.
        """
        path = self.entry_path(key)
        for _ in range(_ATTEMPTS):
            # Files are opened through the directory: one entry is seen whole, even if another takes its place meanwhile.
            folder = self._open(path)
            if folder is None:
                return None
            try:
                trust = self._trust()
                trust.check(folder, str(path))
                artifact = decode_entry(key, partial(_read_file, folder, trust))
                if note_use:
                    touch(folder)
                return artifact
            except BadEntry as error:
                error.identity = _identity(folder)
                raise
            except OSError as error:
                if error.errno == errno.ESTALE or not _is_at(path, folder):
                    continue  # evicted or replaced while we read
                reason = _damage(error)
                if reason is None:
                    raise
                bad = BadEntry(reason)
                bad.identity = _identity(folder)
                raise bad from error
            finally:
                os.close(folder)
        return None

    def write(self, key: CacheKey, artifact: Artifact, replace: bool = False) -> int:
        """Publish the entry of `key` in one step; returns its bytes on disk, 0 if that was not done.

        Where one is there already, that one stays, unless `replace` asks for a change of places; one of a newer format stays always.
        """
        path = self.entry_path(key)
        if path.is_dir() and (not replace or self._is_newer(path)):
            return 0
        layout.make_folder(self.root, path.parent)
        layout.make_folder(self.root, self.root / layout.TMP)
        trust = self._trust()
        for folder in (path.parents[1], path.parent, self.root / layout.TMP):
            trust.check_folder(folder)
        with self._draft(key) as draft:
            files = encode_entry(key, artifact)
            for name, data in files.items():
                _write_file(draft / name, data)
            _sync_folder(draft)
            try:
                os.rename(draft, path)
            except OSError as error:
                if error.errno not in _ALREADY_THERE:
                    raise
                if not replace:
                    return 0
                self._replace(draft, path)
        return sum(map(len, files.values()))

    def quarantine(self, key: CacheKey, identity: tuple[int, int] | None = None) -> Path:
        """Move the entry of `key`, whatever it is, out of the way; returns where to.

        Raises FileNotFoundError if it is gone, or is not the one of `identity` any more; ForeignEntry if it is of a newer format.
        """
        path = self.entry_path(key)
        if self._is_newer(path):
            raise ForeignEntry("its format is newer than ours")
        if identity is not None and self.identity(key) != identity:
            raise FileNotFoundError(errno.ENOENT, "another entry took its place", str(path))
        destination = layout.make_folder(self.root, self.root / layout.QUARANTINE) / layout.unique_name(key.digest)
        os.rename(path, destination)
        with contextlib.suppress(OSError):
            os.utime(destination, follow_symlinks=False)  # its age in quarantine begins
        return destination

    def remove(self, key: CacheKey) -> None:
        """Take the entry of `key` away, if there is one and it is not of a newer format."""
        path = self.entry_path(key)
        if os.path.lexists(path) and not self._is_newer(path):
            trash = layout.make_folder(self.root, self.root / layout.TMP) / (layout.unique_name(key.digest) + layout.TRASH)
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, trash)
            layout.remove_flat(trash)

    def stored_keys(self) -> Iterator[CacheKey]:
        """Keys of all entries whose manifest is intact, in no particular order."""
        for path in layout.version_folder(self.root).glob(f"*/*/{MANIFEST}"):
            with contextlib.suppress(OSError, BadEntry, LookupError, TypeError, ValueError):
                yield CacheKey.from_json(decode_manifest(read_manifest(path.parent))["key"])

    def _trust(self) -> Trust:
        trust = Trust(self.root)
        trust.check_folder(layout.version_folder(self.root))
        return trust

    def _open(self, path: Path) -> int | None:
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            if os.path.lexists(path):
                raise BadEntry("it is not a directory") from error
            raise

    @staticmethod
    def _is_newer(path: Path) -> bool:
        number = layout.stated_format(path)
        return number is not None and number > FORMAT

    @contextlib.contextmanager
    def _draft(self, key: CacheKey) -> Iterator[Path]:
        """A new folder to write to, which is gone in the end; locked, so that nobody takes it for one of the dead."""
        lock: FileLock | None = None
        while True:
            draft = self.root / layout.TMP / layout.unique_name(key.digest)
            try:
                lock = FileLock.take(layout.make_folder(self.root, self.root / layout.LOCKS) / f"{draft.name}.lock")
            except OSError:
                break  # without locks nobody removes drafts
            if lock is not None:
                break
        try:
            layout.mkdir(self.root, draft)
            yield draft
        finally:
            layout.remove_flat(draft)
            if lock is not None:
                lock.release()

    def _replace(self, draft: Path, path: Path) -> None:
        """Put `draft` where `path` is, and what was there away."""
        for _ in range(_ATTEMPTS):
            old = draft
            swapped = exchange(draft, path)
            if not swapped:
                old = draft.with_name(draft.name + layout.TRASH)
                with contextlib.suppress(FileNotFoundError):
                    os.rename(path, old)
            if not layout.is_ours(old):  # somebody put something into it
                with contextlib.suppress(FileNotFoundError):
                    os.rename(old, layout.make_folder(self.root, self.root / layout.QUARANTINE) / draft.name)
            layout.remove_flat(old)
            if swapped:
                return
            try:
                os.rename(draft, path)
                return
            except OSError as error:
                if error.errno not in _ALREADY_THERE:
                    raise


def _identity(folder: Path | int) -> tuple[int, int] | None:
    try:
        status = os.stat(folder) if isinstance(folder, int) else os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with contextlib.suppress(OSError):
        manifest = os.stat(MANIFEST, dir_fd=folder) if isinstance(folder, int) else os.stat(folder / MANIFEST)
        return status.st_ino, manifest.st_mtime_ns
    return status.st_ino, 0


def _is_at(path: Path, folder: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(folder))
    except FileNotFoundError:
        return False


def _damage(error: OSError) -> str | None:
    """What an entry lacks whose file could not be read for a reason that lies in the entry, else None."""
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return f"{error.filename} is missing"
    return f"{error.filename} is a symbolic link" if error.errno == errno.ELOOP else None


def _read_file(folder: int, trust: Trust, name: str, limit: int) -> bytes:
    with open_plain(name, folder) as file:
        trust.check(file.fileno(), name)
        return read_plain(file, name, limit)


def _write_file(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o664), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
