"""Whose files in a cache directory are used. Entries are code that runs, so none that a stranger could have written.

Trusted are this user, root, and whoever owns the cache directory, since its user chose that; with a directory that its group may write to,
and not everybody, also the group. A directory to which everybody may write, other than a sticky one, is not used at all.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from neuron_dynamo.cache.entry import ForeignEntry


class Trust:
    """Who is trusted below the cache directory `root`. Raises PermissionError if that may not be used, and what os.stat raises."""

    def __init__(self, root: Path) -> None:
        status = _status(root)
        _check_folder(root, status)
        self._closed = not status.st_mode & stat.S_IXOTH
        self._users = {os.geteuid(), 0, status.st_uid}
        shared = status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH
        self._group = status.st_gid if shared else None

    def check_folder(self, path: Path) -> None:
        """Raise PermissionError if everybody may put things into the folder `path` or take them away, and what os.stat raises."""
        if not self._closed:
            _check_folder(path, _status(path))

    def check(self, descriptor: int, name: str) -> None:
        """Raise ForeignEntry if an untrusted user could have written the open file or entry folder, `name` to people."""
        status = _status(descriptor)
        if status.st_uid not in self._users and status.st_gid != self._group:
            raise ForeignEntry(
                f"{name} belongs to user {status.st_uid}, who is not trusted here; use a directory of your own, "
                f"or share this one with a group (chmod g+ws, o-w)"
            )
        if status.st_mode & stat.S_IWOTH and not self._closed:
            raise ForeignEntry(f"every user may write to {name}; remove it, or take that right away (chmod o-w)")


def _check_folder(path: Path, status: os.stat_result) -> None:
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(errno.EPERM, f"every user may write to this directory, so nothing in it is used; chmod o-w {path}", str(path))


def _status(place: Path | int) -> os.stat_result:
    return os.stat(place)
