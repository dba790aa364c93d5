"""What made a Program: digests of our own sources and versions of the packages that this process really uses."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy
import torch

_PACKAGES = {"torch-mlir": "torch_mlir", "jaxlib": "jaxlib"}
_LOWERING_ROOMS = ("lowering", "passes")
_PACKAGE_ROOT = Path(__file__).parents[1]


@cache
def lowering_digest() -> str:
    """SHA-256 (hex) over the sources of passes and lowering, wherever the package is installed."""
    return _digest(_PACKAGE_ROOT, (_PACKAGE_ROOT / room for room in _LOWERING_ROOMS))


@cache
def package_digest() -> str:
    """SHA-256 (hex) over all sources of neuron_dynamo, wherever it is installed."""
    return _digest(_PACKAGE_ROOT, (_PACKAGE_ROOT,))


@cache
def toolchain_versions() -> tuple[tuple[str, str], ...]:
    """(distribution, version) of torch, torch-mlir and jaxlib as this process imports them; the last two are not imported for it."""
    return (("torch", torch_version()), *((name, package_version(name, module)) for name, module in _PACKAGES.items()))


@cache
def lowering_versions() -> tuple[tuple[str, str], ...]:
    """(distribution, version) of what takes part in lowering; numpy and ml_dtypes compute constants."""
    return (
        ("torch", torch_version()),
        ("torch-mlir", package_version("torch-mlir", "torch_mlir")),
        ("numpy", numpy.__version__),
        ("ml_dtypes", package_version("ml_dtypes", "ml_dtypes")),
    )


def torch_version() -> str:
    """Version of the torch that runs, and the commit that it was built from: a build of one's own may keep the version."""
    return f"{torch.__version__}+git.{str(torch.version.git_version)[:12]}"


def package_version(distribution: str, module: str) -> str:
    """Identity of the files that `import module` runs: version, and a digest over their names and sizes; "absent" if there are none.

    Installed metadata alone can be stale or describe a copy that another one shadows, so it is only believed for the
    directory that it lies beside, and the files are looked at as well.
    """
    spec = importlib.util.find_spec(module)
    if spec is None:
        return "absent"
    roots = [Path(root) for root in spec.submodule_search_locations or ()]
    if not roots:
        roots = [Path(spec.origin or "")]
    hasher = hashlib.sha256()
    for line in sorted(line for root in roots for line in _names_and_sizes(root)):
        hasher.update(line.encode())
    return f"{_version_beside(roots[0], distribution)}+files.{hasher.hexdigest()[:16]}"


def _version_beside(root: Path, distribution: str) -> str:
    for found in importlib.metadata.distributions(path=[str(root.parent)]):
        if _normalised(found.name) == _normalised(distribution):
            return found.version
    return "unknown"


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names_and_sizes(root: Path) -> Iterator[str]:
    if root.is_file():
        yield f"{root.name}:{root.stat().st_size}\n"
        return
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as found:
            for item in found:
                if item.name.endswith((".py", ".so")) or ".so." in item.name:
                    yield f"{folder}{item.name}:{item.stat().st_size}\n"
                elif item.name != "__pycache__" and item.is_dir(follow_symlinks=False):
                    folders.append(f"{folder}{item.name}/")


def _digest(root: Path, folders: Iterable[Path]) -> str:
    """Over (name relative to `root`, contents) of every module; a `.pyc` file counts where it stands in for its source."""
    hasher = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py*")):
        if path.suffix in (".py", ".pyc") and "__pycache__" not in path.parts and path.is_file():
            contents = path.read_bytes()
            hasher.update(f"{path.relative_to(root).as_posix()}:{len(contents)}\n".encode())
            hasher.update(contents)
    return hasher.hexdigest()
