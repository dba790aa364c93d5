"""Several users and one cache directory: what is trusted, what is shared, what cannot be written. For real where the tests run as root."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from neuron_dynamo.cache import Cache, trust
from neuron_dynamo.cache.entry import ForeignEntry
from neuron_dynamo.cache.local import LocalStore
from tests.cache import faults
from tests.cache.children import Child, heard
from tests.cache.samples import artifact, key, options

ALICE, BOB, GROUP = 65531, 65532, 65530
ROOT = os.getuid() == 0


@pytest.fixture
def folder():
    """A folder that every user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def use(root, user, programs, mode="on", group=65534):
    return Child(faults.use_as, root, user, group, mode, programs).finish()


@pytest.mark.parametrize("mode", ["on", "readonly"])
def test_unwritable_directory(folder, mode):
    store = LocalStore(folder / "cache")
    store.write(key(), artifact())
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    levels, texts = use(store.root, ALICE, ["p0", "p1", "p2"], mode)
    assert levels == ["disk", "miss", "miss"]
    assert len(texts) == (1 if mode == "on" else 0)
    assert all("Permission denied" in text for text in texts)
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(0o755)


def test_directory_to_which_everybody_may_write(folder):
    root = folder / "cache"
    LocalStore(root).write(key(), artifact())
    root.chmod(0o777)
    with heard() as texts:
        for program in ("p0", "p1"):
            assert Cache(options(root)).obtain(key(program), "graph", artifact).level == "miss"
            assert Cache(options(root)).lookup(key(program)).level == "memory"
    [text] = texts
    assert f"chmod o-w {root}" in text
    assert [found.digest for found in LocalStore(root).stored_keys()] == [key().digest]
    root.chmod(0o755)
    assert LocalStore(root).read(key()) == artifact()
    (root / "v1").chmod(0o777)
    with pytest.raises(PermissionError, match="chmod o-w"):
        LocalStore(root).read(key())
    root.chmod(0o700)
    assert LocalStore(root).read(key()) == artifact()  # nobody else gets as far


def test_entry_to_which_everybody_may_write(folder):
    store = LocalStore(folder)
    store.write(key(), artifact())
    for path in (store.entry_path(key()), store.entry_path(key()) / "artifact.bin"):
        path.chmod(path.stat().st_mode | 0o002)
        with pytest.raises(ForeignEntry, match="every user may write to"):
            store.read(key())
        path.chmod(path.stat().st_mode & ~0o002)
    assert store.read(key()) == artifact()


@pytest.mark.parametrize(
    ("me", "owner", "root_owner", "root_mode", "same_group", "trusted"),
    [
        (ALICE, ALICE, ALICE, 0o700, False, True),
        (ALICE, 0, ALICE, 0o755, False, True),
        (ALICE, BOB, BOB, 0o755, False, True),
        (ALICE, BOB, ALICE, 0o755, True, False),
        (ALICE, BOB, 0, 0o1777, True, False),
        (0, BOB, 0, 0o1777, True, False),
        (ALICE, BOB, 0, 0o2775, True, True),
        (ALICE, BOB, 0, 0o2775, False, False),
    ],
)
def test_whose_entries_are_used(folder, monkeypatch, me, owner, root_owner, root_mode, same_group, trusted):
    """Owners as the system would report them, for the processes that cannot take on other users."""

    def told(place):
        status = os.stat(place)
        mode, user, group = status.st_mode, owner, GROUP if same_group else GROUP + 1
        if place == folder:
            mode, user, group = (mode & ~0o7777) | root_mode, root_owner, GROUP
        return os.stat_result((mode, *status[1:4], user, group, *status[6:]))

    store = LocalStore(folder)
    store.write(key(), artifact())
    monkeypatch.setattr(trust, "_status", told)
    monkeypatch.setattr(os, "geteuid", lambda: me)
    if trusted:
        assert store.read(key()) == artifact()
    else:
        with pytest.raises(ForeignEntry, match=f"belongs to user {owner}, who is not trusted here"):
            store.read(key())


def test_sticky_directory_keeps_strangers_apart(folder):
    """As in /tmp: each uses what is its own or root's."""
    root = folder / "cache"
    root.mkdir()
    root.chmod(0o1777)
    assert use(root, ALICE, ["p0"]) == (["miss"], [])
    assert use(root, ALICE, ["p0"]) == (["disk"], [])
    levels, texts = use(root, BOB, ["p0", "p1"])
    if ROOT:
        assert levels == ["miss", "miss"]
        assert any(f"belongs to user {ALICE}, who is not trusted here" in text and "chmod g+ws" in text for text in texts)
        with pytest.raises(ForeignEntry):
            LocalStore(root).read(key("p0"))
        assert use(root, ALICE, ["p0"]) == (["disk"], []), "it is still there"
    else:
        assert levels == ["disk", "miss"]


def test_directory_shared_with_a_group(folder):
    root = folder / "cache"
    root.mkdir()
    if ROOT:
        os.chown(root, 0, GROUP)
    root.chmod(0o2770)
    assert use(root, ALICE, ["p0"], group=GROUP) == (["miss"], [])
    assert use(root, BOB, ["p0", "p1"], group=GROUP) == (["disk", "miss"], [])
    assert use(root, ALICE, ["p1"], group=GROUP) == (["disk"], [])


def test_new_directory_is_its_owners_alone_and_no_umask_opens_it(folder):
    before = os.umask(0)
    try:
        LocalStore(folder / "new").write(key(), artifact())
        (folder / "own").mkdir(mode=0o755)
        LocalStore(folder / "own").write(key(), artifact())
    finally:
        os.umask(before)
    assert (folder / "new").stat().st_mode & 0o777 == 0o700
    assert [path for path in (folder / "own").rglob("*") if path.stat().st_mode & 0o002] == []
    assert LocalStore(folder / "own").read(key()) == artifact()


def test_entry_that_may_not_be_read_is_a_miss(folder, monkeypatch):
    LocalStore(folder).write(key(), artifact())
    real = os.open

    def denied(path, *args, **kwargs):
        if str(path).endswith("artifact.bin"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", denied)
    with heard() as texts:
        assert Cache(options(folder)).lookup(key()).level == "miss"
    assert len(texts) == 1 and "Permission denied" in texts[0]
    monkeypatch.undo()
    assert LocalStore(folder).read(key()) == artifact()
