"""Processes that die, stop, race and run out of disk on one cache directory. Nothing is lost, nothing hangs, and no hit is wrong."""

import errno
import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from neuron_dynamo.cache import Cache, local, locks, stats
from neuron_dynamo.cache.eviction import collect
from neuron_dynamo.cache.local import LocalStore
from tests.cache import faults
from tests.cache.children import ROUNDS, Child, heard
from tests.cache.samples import artifact, key, options


@pytest.fixture
def folder():
    """A folder that every user may enter, which pytest's own are not; in memory where that can be had, for syncing costs nothing there."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize(
    ("prepare", "act", "check", "calls"),
    [
        (faults.nothing, faults.publish, faults.check_published, {"mkdir", "open", "flock", "fsync", "rename", "unlink"}),
        (faults.publish_old, faults.replace, faults.check_replaced, {"mkdir", "open", "flock", "fsync", "exchange", "unlink", "rmdir"}),
        (faults.publish_three, faults.evict, faults.check_evicted, {"rename", "unlink", "rmdir", "scandir"}),
        (faults.nothing, faults.obtain, faults.check_obtained, {"mkdir", "open", "flock", "fsync", "rename", "unlink"}),
    ],
    ids=["publish", "replace", "evict", "obtain"],
)
def test_killed_at_every_step(folder, prepare, act, check, calls):
    names = Child(faults.die_at_each_step, folder, prepare, act, check).finish()
    assert calls <= set(names)
    assert len(names) >= 20


def test_killed_while_it_replaces_where_names_cannot_be_swapped(folder, monkeypatch):
    """Then there is a moment without an entry, which costs a compile, and never one with half an entry."""
    monkeypatch.setattr(local, "exchange", lambda one, other: False)
    LocalStore(folder).write(key(), artifact(b"old"))
    assert LocalStore(folder).write(key(), artifact(b"new"), replace=True)
    assert LocalStore(folder).read(key()) == artifact(b"new")
    assert faults.is_tidy(folder)


@pytest.mark.parametrize("again", range(ROUNDS))
def test_a_killed_owner_is_followed_by_one_of_three_waiters(folder, again):
    owner = Child(faults.make_slowly, folder)
    assert owner.receive() == "making"
    waiters = [Child(faults.make_slowly, folder) for _ in range(3)]
    owner.signal(signal.SIGKILL)
    answers = {}
    followed = next(waiter for waiter in _ready(waiters))
    assert followed.receive() == "making"
    followed.send(b"made by a waiter")
    for waiter in waiters:
        answers[waiter] = waiter.finish()
    assert [made for _, _, made, _ in answers.values()].count(True) == 1
    assert answers[followed][2]
    assert {payload for _, payload, _, _ in answers.values()} == {b"made by a waiter"}
    assert [texts for _, _, _, texts in answers.values()] == [[], [], []]
    assert faults.is_tidy(folder)


def _ready(children):
    from multiprocessing.connection import wait

    found = wait([child._connection for child in children], timeout=300)
    assert found, "nobody follows"
    return [child for child in children if child._connection in found]


def test_threads_and_processes_make_it_once(folder):
    children = [Child(faults.obtain_with_threads, folder) for _ in range(3)]
    for child in children:
        assert child.receive() == "ready"
    for child in children:
        child.send("go")
    answers = [child.finish() for child in children]
    assert sum(made for made, _ in answers) == 1
    assert [got for _, got in answers] == [4, 4, 4]
    assert faults.is_tidy(folder)


def test_a_stopped_owner_is_waited_for_no_longer_and_may_go_on(folder):
    owner = Child(faults.make_slowly, folder)
    assert owner.receive() == "making"
    owner.signal(signal.SIGSTOP)
    try:
        waiter = Child(faults.make_slowly, folder, 0.5)
        assert waiter.receive() == "making"
        waiter.send(b"made by the waiter")
        level, payload, made, [text] = waiter.finish()
        assert (level, payload, made) == ("miss", b"made by the waiter", True)
        assert f"process {owner.pid} on " in text and "ND130" in text
        assert LocalStore(folder).read(key()).payload == b"made by the waiter"
    finally:
        owner.signal(signal.SIGCONT)
    owner.send(b"made by the owner")
    assert owner.finish() == ("miss", b"made by the owner", True, [])
    assert LocalStore(folder).read(key()).payload == b"made by the waiter"
    assert faults.is_tidy(folder)


@pytest.mark.parametrize("again", range(ROUNDS))
def test_sixteen_processes_with_eviction(folder, again):
    graphs, limit = 50, 60_000
    total = sum(artifact(faults.content(number)).size for number in range(graphs))
    assert total > 2 * limit
    answers = [child.finish() for child in [Child(faults.use_many, folder, 100 * again + seed, graphs, limit) for seed in range(16)]]
    assert all(hits + made == graphs for hits, made, _ in answers)
    assert sum(hits for hits, _, _ in answers) > 0
    assert [texts for _, _, texts in answers if texts] == []
    assert collect(folder).before <= limit * 1.25  # the last to publish may have left the room to others
    for stored in LocalStore(folder).stored_keys():
        assert LocalStore(folder).read(stored) is not None
    assert faults.is_tidy(folder)


def test_readers_never_see_half_an_entry_while_two_processes_publish(folder):
    count = 40
    reader = Child(faults.read_until_all_are_there, folder, [b"a", b"b"], count)
    writers = [Child(faults.write_many, folder, name, False, count) for name in (b"a", b"b")]
    for child in (reader, *writers):
        assert child.receive() == "ready"
    for child in (reader, *writers):
        child.send("go")
    assert reader.finish() == (count, True)
    for writer in writers:
        writer.finish()
    assert faults.is_tidy(folder)


@pytest.mark.parametrize("again", range(ROUNDS))
def test_an_entry_that_is_replaced_is_always_there(folder, again):
    LocalStore(folder).write(key("0"), artifact(b"a" * 50_000))
    reader = Child(faults.read_while_replaced, folder, [b"a", b"b", b"c"])
    writers = [Child(faults.write_many, folder, name, True, 40) for name in (b"b", b"c")]
    for child in (reader, *writers):
        assert child.receive() == "ready"
    for writer in writers:
        writer.send("go")
    for writer in writers:
        writer.finish()
    reader.send("stop")
    assert reader.finish() - {b"a"} != set()
    assert faults.is_tidy(folder)


def test_full_disk(folder):
    (folder / "disk").mkdir()
    kind, levels, texts, whole = Child(faults.fill_a_disk, folder / "disk", 400_000).finish()
    assert levels == ["memory"] * 6
    assert len(texts) == 1 and texts[0].startswith("ND130")
    assert ("No space left" if kind == "file system" else "File too large") in texts[0]
    assert whole


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EBADF, errno.EIO])
def test_no_locks_on_this_file_system(folder, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with heard() as texts:
        for program in ("p0", "p1"):
            assert Cache(options(folder)).obtain(key(program), "graph", artifact).level == "miss"
            faults.forget()
            assert Cache(options(folder)).obtain(key(program), "graph", artifact).level == "disk"
        assert collect(folder, max_bytes=0).freed > 0
    [text] = texts
    assert "locks do not work here" in text and "each compile it" in text


def test_clocks_that_are_wrong(folder):
    """No decision but the order of eviction looks at a time that another machine wrote."""
    store = LocalStore(folder)
    for program, skew in (("past", -10 * 365 * 86400), ("now", 0), ("future", 10 * 365 * 86400)):
        store.write(key(program), artifact())
        for path in (store.entry_path(key(program)), *store.entry_path(key(program)).iterdir()):
            os.utime(path, (time.time() + skew, time.time() + skew))
    for name in ("past", "future"):
        lock = store.lock_path(key(f"left by the dead, {name}"))
        lock.touch()
        os.utime(lock, (time.time() + (1e9 if name == "future" else -1e9),) * 2)
    with heard() as texts:
        for program in ("past", "now", "future"):
            assert store.read(key(program)) == artifact()
        for name in ("past", "future"):
            assert Cache(options(folder)).obtain(key(f"left by the dead, {name}"), "graph", artifact).level == "miss"
    assert texts == []
    collect(folder, max_age=86400)
    assert [store.read(key(program)) is None for program in ("past", "now", "future")] == [True, False, False]
    future = store.entry_path(key("future")).stat().st_mtime
    assert abs(future - time.time()) < 3600, "it begins to age"


def test_directory_removed_while_the_compiler_runs(folder):
    root = folder / "cache"

    def make():
        shutil.rmtree(root)
        return artifact()

    with heard() as texts:
        assert Cache(options(root)).obtain(key(), "graph", make).artifact == artifact()
    assert texts == []
    assert LocalStore(root).read(key()) == artifact()
    assert faults.is_tidy(root)


def test_an_error_of_the_maker_is_its_own(folder):
    """The next in line tries for itself, in the same process and in others."""
    entered, outcomes = threading.Event(), []

    def fail():
        entered.set()
        raise ValueError("out of memory")

    def work(make):
        try:
            outcomes.append(Cache(options(folder)).obtain(key(), "graph", make).level)
        except ValueError as error:
            outcomes.append(str(error))

    first = threading.Thread(target=work, args=(fail,))
    first.start()
    assert entered.wait(300)
    work(artifact)
    first.join()
    assert sorted(outcomes) == ["miss", "out of memory"]
    assert faults.is_tidy(folder)


def test_fork_in_the_middle_of_a_compile_leaves_the_lock_with_the_parent(folder):
    """A child, such as a worker of a DataLoader, neither releases the lock nor keeps it."""

    def make():
        child = os.fork()
        if child == 0:
            os._exit(0 if locks.FileLock.take(LocalStore(folder).lock_path(key())) is None and not _locks_in(os.getpid()) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return artifact()

    assert Cache(options(folder)).obtain(key(), "graph", make).level == "miss"
    assert stats().errors == 0


def _locks_in(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [target for path in folder.iterdir() if path.is_symlink() and (target := _target(path)).endswith(".lock")]


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
