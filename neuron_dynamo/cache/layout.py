"""Names in a cache directory, and what of it is ours to remove.

<root>/v<format>/<first 2 hex of digest>/<digest>/   entries; the folder's time of change is when the entry was last used
<root>/tmp/<digest>.<pid>.<12 hex>                   entries being written, locked by their writer; what the dead left is never read
<root>/tmp/<digest>.<pid>.<12 hex>.trash             entries being removed
<root>/quarantine/<digest>.<pid>.<12 hex>            bad entries, kept for their owner to look at
<root>/locks/<digest>.lock, <draft>.lock             kernel locks of those who compile an entry or write a draft
<root>/loading/<digest>.<12 hex>                     entries being loaded, locked by who loads them (see probe.py)
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import uuid
from pathlib import Path

from neuron_dynamo.cache.entry import MANIFEST, PAYLOAD, PROGRAM, BadEntry
from neuron_dynamo.cache.key import FORMAT
from neuron_dynamo.cache.plain import read_manifest

TMP, QUARANTINE, LOCKS = "tmp", "quarantine", "locks"
TRASH, GC_LOCK = ".trash", "gc.lock"

DIGEST = re.compile(r"[0-9a-f]{64}")
DRAFT = re.compile(r"[0-9a-f]{64}\.[0-9]+\.[0-9a-f]{12}")
LOCK = re.compile(rf"(?:{DIGEST.pattern}|{DRAFT.pattern}|gc)\.lock")
MARK = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{12}")
VERSION_FOLDER = re.compile(r"v([0-9]+)")


def version_folder(root: Path) -> Path:
    return root / f"v{FORMAT}"


def entry_folder(root: Path, digest: str) -> Path:
    return version_folder(root) / digest[:2] / digest


def make_folder(root: Path, folder: Path) -> Path:
    """Make `folder` below `root`, and `root`, where they are not there. Raises OSError."""
    if not folder.is_dir():
        os.makedirs(root.parent, exist_ok=True)
        if not root.exists():
            with contextlib.suppress(FileExistsError):
                os.mkdir(root, 0o700)  # entries are code that runs: a root of our own making is its owner's alone
        for path in (*(root / parent for parent in reversed(folder.relative_to(root).parents) if parent.name), folder):
            if not path.is_dir():
                with contextlib.suppress(FileExistsError):
                    mkdir(root, path)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    return folder


def mkdir(root: Path, folder: Path) -> None:
    """Make one folder below `root`, open to the group if that is, and to everybody's writing by no umask. Raises OSError."""
    os.mkdir(folder, 0o775)
    mode = stat.S_IMODE(os.stat(root).st_mode)
    if mode & stat.S_IWGRP:
        os.chmod(folder, mode & 0o2775)


def unique_name(digest: str) -> str:
    """A name for a draft, or for an entry that is put aside, which nothing else has."""
    return f"{digest}.{os.getpid()}.{uuid.uuid4().hex[:12]}"


def known_versions(root: Path) -> list[Path]:
    """Folders of entries of this format and of older ones; those of newer ones are not ours to judge."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    return [root / name for name in sorted(names) if (match := VERSION_FOLDER.fullmatch(name)) and int(match[1]) <= FORMAT]


def stated_format(folder: Path) -> int | None:
    """The format that the entry in `folder` says it has, or None where it says nothing of the kind."""
    with contextlib.suppress(OSError, BadEntry, ValueError, LookupError, TypeError, RecursionError):
        number = json.loads(read_manifest(folder))["format"]
        return number if type(number) is int else None
    return None


def is_ours(folder: Path) -> bool:
    """Whether `folder` holds an entry of a format that we know and nothing besides, so that all of it may be removed."""
    names: set[str] = {MANIFEST, PAYLOAD, PROGRAM}
    with contextlib.suppress(OSError, BadEntry, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        manifest = json.loads(read_manifest(folder))
        if isinstance(manifest["format"], int) and manifest["format"] > FORMAT:
            return False
        names |= set(manifest["files"])
    try:
        with os.scandir(folder) as found:
            return all(entry.is_file(follow_symlinks=False) and entry.name in names for entry in found)
    except OSError:
        return False


def remove_flat(folder: Path) -> None:
    """Remove the files in `folder` and then itself; what else lies there stays. Never raises."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                os.unlink(folder / name)
        os.rmdir(folder)
