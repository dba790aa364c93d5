"""Kernel locks with a heartbeat. Time is the test's own, so that hours pass in no time and nothing depends on the machine's speed."""

import errno
import fcntl
import os
import signal

import pytest

from neuron_dynamo.cache import locks
from neuron_dynamo.cache.locks import FileLock, LocksUnavailable, Stalled, remove_if_free, wait_for
from tests.cache.children import Child


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.lock"


class Clock:
    """Stands for the waiter's clock; each sleep moves it on and then does what else is to happen at that time."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.then = lambda now: None
        monkeypatch.setattr(locks, "time", self)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.then(self.now)

    def time_ns(self):
        return 10**18


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_one_holds_it_and_leaves_nothing(path):
    lock = FileLock.take(path)
    assert FileLock.take(path) is None
    assert FileLock.is_held(path)
    assert f"process {os.getpid()} on " in path.read_text()
    assert not remove_if_free(path)
    lock.release()
    lock.release()
    assert not path.exists()
    with FileLockHeld(path):
        assert FileLock.is_held(path)


class FileLockHeld:
    def __init__(self, path):
        self.lock = FileLock.take(path)

    def __enter__(self):
        assert self.lock is not None

    def __exit__(self, *_):
        self.lock.release()


def test_owner_that_works_for_three_hours_is_waited_for(path, clock):
    owner = FileLock.take(path)
    beats = []

    def work(now):
        if now >= len(beats) * locks.HEARTBEAT * 20:  # a slow machine
            owner.beat()
            beats.append(now)
        if now > 3 * 3600:
            owner.release()

    clock.then = work
    lock = wait_for(path)
    assert 3 * 3600 < clock.now < 3 * 3600 + 1
    lock.release()


@pytest.mark.parametrize("skew", [0, -(10**18), 10**18], ids=["right", "1970", "far future"])
def test_owner_that_gives_no_sign_of_life_is_waited_for_no_longer(path, clock, skew):
    """Whatever time it is on the machine of the owner."""
    owner = FileLock.take(path)
    os.utime(path, ns=(10**18 + skew,) * 2)
    with pytest.raises(Stalled, match=f"process {os.getpid()} on "):
        wait_for(path, patience=60)
    assert 60 < clock.now < 62
    owner.release()


def test_patience_begins_anew_with_each_owner(path, clock):
    owners = [FileLock.take(path)]

    def follow(now):
        if now > 50 * len(owners) and len(owners) < 4:
            owners[-1].release()
            owners.append(FileLock.take(path))

    clock.then = follow
    with pytest.raises(Stalled):
        wait_for(path, patience=60)
    assert len(owners) == 4 and clock.now > 200
    owners[-1].release()


def test_heartbeat_of_a_thread(path):
    """Real time, but only the order of events counts."""
    lock = FileLock.take(path)
    before = path.stat().st_mtime_ns
    lock.keep_beating(0.001)
    deadline = locks.time.monotonic() + 300
    while path.stat().st_mtime_ns < before + 3 * 10**9:
        assert locks.time.monotonic() < deadline
        locks.time.sleep(0.001)
    lock.release()
    assert not lock._thread.is_alive()
    assert not path.exists()


def hold(talk, path):
    lock = FileLock.take(path)
    talk.send(lock is not None)
    talk.receive()


def test_lock_of_the_dead_is_free(path):
    owner = Child(hold, path)
    assert owner.receive()
    assert FileLock.take(path) is None
    owner.signal(signal.SIGKILL)
    assert path.exists()
    assert not FileLock.is_held(path)
    assert remove_if_free(path)
    assert not path.exists()


def test_file_removed_between_opening_and_locking_is_not_locked(path, monkeypatch):
    """Else two would hold the lock of one name: one that of the removed file, one that of the next."""
    first = FileLock.take(path)
    real, others = fcntl.flock, []

    def late(descriptor, operation):
        if not others:
            others.append(None)
            first.release()
            others.append(FileLock.take(path))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert FileLock.take(path) is None
    assert FileLock.is_held(path)
    others[1].release()
    assert not path.exists()


def test_release_leaves_the_file_of_another(path):
    mine = FileLock.take(path)
    path.unlink()
    other = FileLock.take(path)
    mine.release()
    assert path.exists() and FileLock.is_held(path)
    other.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_no_locks(path, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LocksUnavailable, match="locks do not work here"):
        wait_for(path)
    with pytest.raises(LocksUnavailable):
        FileLock.is_held(path)
    assert not remove_if_free(path)
    assert set(os.listdir("/proc/self/fd")) == before


def test_link_is_not_followed(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        FileLock.take(path)
    assert not (tmp_path / "elsewhere").exists()
