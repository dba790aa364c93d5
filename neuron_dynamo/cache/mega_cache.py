"""`torch.compiler.save_cache_artifacts()` and `load_cache_artifacts()`: PyTorch's bundle carries our entries too.

PyTorch refuses a whole bundle in a process where the type of one artifact is not registered, and a process that loads a bundle need not
have imported this package. So ours go as artifacts of AOTAutogradCache, under keys which that never looks up: `neuron_dynamo/<digest>`.
Loading writes them to its folder, beside the entries that lead to them, and there the cache finds them when its own directory has none.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.compiler._cache import CacheArtifact, CacheArtifactManager

from neuron_dynamo.cache.bundle import bundled_keys, pack, read_bundle
from neuron_dynamo.cache.entry import Artifact, BadEntry
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.trouble import warn_once
from neuron_dynamo.errors import BundleError

TYPE = "aot_autograd"
FOLDER = "neuron_dynamo"

_AOT_CACHE = "torch._functorch._aot_autograd.autograd_cache"
_NOT_VERSIONS = frozenset({"program", "graph", "compiler_args", "precision", "lnc", "target_properties"})
"""Parts of a key in which the entries of one bundle differ, or which the user sets."""
_PLACE = "torch.compiler.load_cache_artifacts"
_lock = threading.Lock()
_looked_through: set[Path] = set()


class LateArtifact(CacheArtifact):
    """An entry that is read when PyTorch serialises it, so that a process which never saves a bundle holds no second copy of it.

    `read` returns the entry, or None where it is gone by then; then its place in the bundle stays empty, with a warning.
    """

    def __init__(self, key: CacheKey, read: Callable[[CacheKey], Artifact | None]) -> None:
        object.__setattr__(self, "key", f"{FOLDER}/{key.digest}")
        object.__setattr__(self, "_parts", key)
        object.__setattr__(self, "_read", read)

    @property
    def content(self) -> bytes:
        key: CacheKey = self._parts  # type: ignore[attr-defined]
        artifact = self._read(key)  # type: ignore[attr-defined]
        if artifact is None:
            warn_once("torch.compiler.save_cache_artifacts", key.digest, f"entry {key.digest} is gone and so not in the bundle")
            return b""
        return pack(key, artifact)

    def populate_cache(self) -> None:
        """Never called: what PyTorch loads is an artifact of its own."""

    @staticmethod
    def type() -> str:
        return TYPE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LateArtifact) and self.key == other.key

    def __hash__(self) -> int:
        return hash((LateArtifact, self.key))

    def __repr__(self) -> str:
        return f"LateArtifact(key={self.key!r})"


def record(key: CacheKey, read: Callable[[CacheKey], Artifact | None]) -> None:
    """Make the entry of `key`, which this process made or used, part of the next bundle that PyTorch saves."""
    if _AOT_CACHE not in sys.modules:  # nothing was compiled through torch.compile
        return
    artifact = LateArtifact(key, read)
    try:
        manager = CacheArtifactManager
        with _lock:
            if artifact not in manager._seen_artifacts:
                manager._seen_artifacts.add(artifact)
                manager._new_cache_artifacts[TYPE].append(artifact)
    except Exception as error:  # private API: a bundle that lacks an entry is no reason to stop a job
        warn_once("torch.compiler.save_cache_artifacts", "record", f"entries will not be in the bundle: {error!r}")


def loaded(key: CacheKey) -> Artifact | None:
    """The verified artifact of `key` if a bundle that PyTorch loaded brought it. Warns once of entries made for something else."""
    root = _root()
    if root is None or not root.is_dir():
        return None
    found = next((artifact for other, artifact in _bundles(root / key.digest) if other.digest == key.digest), None)
    if found is None:
        _look_through(root, key)
    return found


def loaded_keys() -> Iterator[CacheKey]:
    """Keys of the entries that bundles brought, in no particular order."""
    root = _root()
    for path in sorted(root.glob("*/*")) if root is not None else ():
        with contextlib.suppress(OSError, BadEntry, BundleError):
            yield from bundled_keys(path)


def _root() -> Path | None:
    module: Any = sys.modules.get(_AOT_CACHE)
    return Path(module.AOTAutogradCache._get_tmp_dir(), FOLDER) if module else None


def _bundles(folder: Path) -> Iterator[tuple[CacheKey, Artifact]]:
    """Verified entries in one folder of those that PyTorch wrote: files named by the SHA-256 of their content."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        try:
            data = path.read_bytes()
            if path.name.endswith(".tmp") or not data:
                continue
            for digest, outcome in read_bundle(io.BytesIO(data), path.name[:16]):
                if isinstance(outcome, str):
                    warn_once(_PLACE, str(path), f"an entry of the bundle is refused: {digest}: {outcome}")
                else:
                    yield outcome
        except (OSError, BundleError) as error:
            warn_once(_PLACE, str(path), f"an entry of the bundle is refused: {error}")


def _look_through(root: Path, key: CacheKey) -> None:
    """Say once, where a bundle has none for `key`, which of its entries were made by other versions or for other machines."""
    with _lock:
        if root in _looked_through:
            return
        _looked_through.add(root)
    refused: dict[str, str] = {}
    for other in loaded_keys():
        if other.kind == key.kind and dict(other.parts).get("target") == dict(key.parts).get("target"):
            differing = [
                f"{name} is {_short(own)}, in the bundle {_short(theirs)}"
                for name, own, theirs in key.differing(other)
                if name not in _NOT_VERSIONS
            ]
            if differing:
                refused[other.digest] = "; ".join(differing)
    if refused:
        reasons = sorted(set(refused.values()))
        more = f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else ""
        warn_once(_PLACE, f"versions {key.kind}", f"{len(refused)} entries of the bundle are not for this process: {reasons[0]}{more}")


def _short(value: str | None) -> str:
    return repr(value) if value is None or len(value) <= 80 else repr(value[:80]) + "..."
