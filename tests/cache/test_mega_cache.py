"""What PyTorch's cache artifacts carry of ours, and what is made of what they bring. Whole jobs: tests/field/test_warmup.py."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._functorch._aot_autograd.autograd_cache  # what a process that compiles has imported
from torch.compiler._cache import CacheArtifactManager

from neuron_dynamo.cache import Cache, CacheKey, bundle, mega_cache
from neuron_dynamo.errors import CacheWarning
from tests.cache.samples import artifact, options


@pytest.fixture(autouse=True)
def fresh_artifacts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mega_cache, "_looked_through", set())
    with CacheArtifactManager.with_fresh_cache():
        yield


def key(program: str = "p", torch_version: str = "2.13", **parts: str) -> CacheKey:
    return CacheKey((("kind", "artifact"), ("program", program), ("target", "host"), ("torch", torch_version), *parts.items()))


def saved() -> tuple[bytes, list[str]]:
    outcome = torch.compiler.save_cache_artifacts()
    assert outcome is not None
    return outcome[0], outcome[1].aot_autograd_artifacts


def bundle_of(tmp_path: Path, *keys: CacheKey) -> bytes:
    cache = Cache(options(tmp_path / "maker"))
    for name in keys:
        cache.put(name, artifact(name.digest.encode()))
    return saved()[0]


def test_what_is_made_and_what_is_found_is_recorded_once(tmp_path: Path) -> None:
    cache = Cache(options(tmp_path / "a"))
    cache.put(key("made"), artifact())
    cache.lookup(key("made"))
    cache.lookup(key("missing"))
    other = Cache(options(tmp_path / "b"))
    bundle.publish(other._local, key("found"), artifact(b"found"))
    other.lookup(key("found"))
    _, names = saved()
    assert names == [f"neuron_dynamo/{key(name).digest}" for name in ("made", "found")]


def test_off_records_nothing(tmp_path: Path) -> None:
    Cache(options(tmp_path, "off")).put(key(), artifact())
    assert torch.compiler.save_cache_artifacts() is None


def test_a_bundle_fills_an_empty_cache(tmp_path: Path) -> None:
    data = bundle_of(tmp_path, key("a"), key("b"))
    torch.compiler.load_cache_artifacts(data)
    cache = Cache(options(tmp_path / "user"))
    for name in (key("a"), key("b")):
        found = cache.lookup(name)
        assert found.level == "disk" and found.artifact == artifact(name.digest.encode())
    assert cache._local.read(key("a")) is not None  # from now on without PyTorch's folder
    assert cache.lookup(key("c")).artifact is None
    assert saved()[1] == [f"neuron_dynamo/{key(name).digest}" for name in ("a", "b")]


@pytest.mark.parametrize("mode", ["readonly", "require"])
def test_modes_that_do_not_write_read_a_bundle(tmp_path: Path, mode: str) -> None:
    torch.compiler.load_cache_artifacts(bundle_of(tmp_path, key()))
    (tmp_path / "user").mkdir()
    assert Cache(options(tmp_path / "user", mode)).lookup(key()).artifact is not None
    assert list((tmp_path / "user").iterdir()) == []


def test_entries_for_other_versions_are_refused_with_one_warning(tmp_path: Path) -> None:
    torch.compiler.load_cache_artifacts(bundle_of(tmp_path, key("a", "2.12"), key("b", "2.12"), key("c")))
    cache = Cache(options(tmp_path / "user"))
    with pytest.warns(CacheWarning) as caught:
        found = [cache.lookup(key(name)).artifact is not None for name in "abc"]
    assert found == [False, False, True]
    (warning,) = caught
    assert "2 entries of the bundle are not for this process: torch is '2.13', in the bundle '2.12'" in str(warning.message)


def test_another_graph_of_the_same_versions_is_no_reason_to_warn(tmp_path: Path) -> None:
    torch.compiler.load_cache_artifacts(bundle_of(tmp_path, key("a"), key("b", "2.13", precision="narrow")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(options(tmp_path / "user")).lookup(key("c")).artifact is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:3000], "refused"),
        (lambda data: b"no bundle", "is not a bundle"),
        (lambda data: data.replace(b'{"bundle": 1', b'{"bundle": 2'), "is a bundle of version 2"),
        (lambda data: data.replace(b"one warning", b"two warning"), "does not match its checksum"),
    ],
)
def test_a_bad_entry_costs_a_recompile(tmp_path: Path, damage: object, reason: str) -> None:
    torch.compiler.load_cache_artifacts(bundle_of(tmp_path, key()))
    (path,) = (tmp_path / "torch_cache" / "aotautograd" / "neuron_dynamo" / key().digest).iterdir()
    damaged = damage(path.read_bytes())  # type: ignore[operator]
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.warns(CacheWarning, match=reason) as caught:
        assert Cache(options(tmp_path / "user")).lookup(key()).artifact is None
    assert len(caught) == 1


def test_an_entry_that_is_gone_leaves_its_place_empty(tmp_path: Path) -> None:
    cache = Cache(options(tmp_path / "a"))
    cache.put(key("gone"), artifact())
    cache.put(key("here"), artifact())
    shutil.rmtree(cache._local.entry_path(key("gone")))
    cache._memory.drop(key("gone"))
    with pytest.warns(CacheWarning, match=f"entry {key('gone').digest} is gone"):
        data, _ = saved()
    torch.compiler.load_cache_artifacts(data)
    user = Cache(options(tmp_path / "user"))
    assert user.lookup(key("here")).artifact == artifact()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert user.lookup(key("gone")).artifact is None
