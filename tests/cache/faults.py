"""What the children of the fault tests do: use one cache directory, and die at a given step."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuron_dynamo.cache import Cache, local, locks, store
from neuron_dynamo.cache.eviction import collect
from neuron_dynamo.cache.local import LocalStore
from tests.cache.children import Talk, heard
from tests.cache.samples import artifact, key, options

CALLS = ("mkdir", "open", "fsync", "rename", "close", "unlink", "rmdir", "listdir", "scandir", "utime", "ftruncate", "pwrite", "chmod")


def forget() -> None:
    """Be a new process, as far as the cache goes."""
    store._memory.clear()


def _die_before(step: int, output: int) -> None:
    """Kill this process before its `step`th call into the system, whose name goes to `output`."""
    count = 0
    kill, write = os.kill, os.write

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                write(output, name.encode())
                kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name, getattr(os, name)))
    fcntl.flock = wrap("flock", fcntl.flock)
    local.exchange = wrap("exchange", local.exchange)


def die_at_each_step(talk: Talk, folder: Path, prepare: Any, act: Any, check: Any) -> list[str]:
    """Run `act` in a process that dies before its nth call, for each n, and `check` what it left. Returns the names of the calls."""
    names: list[str] = []
    while not names or names[-1] != "":
        root = folder / str(len(names))
        prepare(root)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _die_before(len(names) + 1, writer)
            act(root)
            os._exit(0)
        os.close(writer)
        status = os.waitpid(child, 0)[1]
        with os.fdopen(reader, "rb") as output:
            names.append(output.read().decode())
        died = os.WIFSIGNALED(status)
        assert died == (names[-1] != ""), (names, status)
        forget()
        with heard() as texts:
            check(root, died)
        assert texts == [], names
    return names[:-1]


def nothing(root: Path) -> None:
    pass


def is_tidy(root: Path) -> bool:
    return not any((root / name).is_dir() and os.listdir(root / name) for name in ("tmp", "locks", "quarantine"))


def publish(root: Path) -> None:
    LocalStore(root).write(key(), artifact(b"new"))


def check_published(root: Path, died: bool) -> None:
    found = LocalStore(root).read(key())
    assert found in ((None, artifact(b"new")) if died else (artifact(b"new"),))
    collect(root)
    assert is_tidy(root)
    assert LocalStore(root).read(key()) == found
    LocalStore(root).write(key(), artifact(b"new"))
    assert LocalStore(root).read(key()) == artifact(b"new")
    assert is_tidy(root)


def publish_old(root: Path) -> None:
    LocalStore(root).write(key(), artifact(b"old"))


def replace(root: Path) -> None:
    LocalStore(root).write(key(), artifact(b"new"), replace=True)


def check_replaced(root: Path, died: bool) -> None:
    found = LocalStore(root).read(key())
    assert found in ((artifact(b"old"), artifact(b"new")) if died else (artifact(b"new"),))
    collect(root)
    assert is_tidy(root)
    assert LocalStore(root).read(key()) == found


def publish_three(root: Path) -> None:
    for age, name in enumerate("cba"):
        LocalStore(root).write(key(name), artifact(name.encode()))
        stamp = time.time() - 10_000 * (3 - age)
        os.utime(LocalStore(root).entry_path(key(name)), (stamp, stamp))


def evict(root: Path) -> None:
    collect(root, max_bytes=1500)


def check_evicted(root: Path, died: bool) -> None:
    found = {name: LocalStore(root).read(key(name)) for name in "abc"}
    assert found["a"] == artifact(b"a")
    assert all(value in (None, artifact(name.encode())) for name, value in found.items())
    assert collect(root, max_bytes=1500).after <= 1500
    assert is_tidy(root)
    assert [name for name in "abc" if LocalStore(root).read(key(name))] == ["a"]


def obtain(root: Path) -> None:
    Cache(options(root)).obtain(key(), "graph", lambda: artifact(b"new"))


def check_obtained(root: Path, died: bool) -> None:
    found = LocalStore(root).read(key())
    assert found in ((None, artifact(b"new")) if died else (artifact(b"new"),))
    start = time.monotonic()
    again = Cache(options(root)).obtain(key(), "graph", lambda: artifact(b"new"))
    assert (again.level, again.artifact) == ("miss" if found is None else "disk", artifact(b"new"))
    assert time.monotonic() - start < locks.PATIENCE, "a dead owner's lock was waited for"
    collect(root)
    assert is_tidy(root)


def make_slowly(talk: Talk, root: Path, patience: float | None = None) -> tuple[str, bytes, bool, list[str]]:
    """Obtain one artifact, making it only when told to. Returns level, payload, whether it was made here, and warnings."""
    if patience is not None:
        store.PATIENCE = patience
    made = []

    def make() -> Any:
        made.append(True)
        talk.send("making")
        return artifact(talk.receive())

    with heard() as texts:
        found = Cache(options(root)).obtain(key(), "graph", make)
    assert found.artifact is not None
    return found.level, found.artifact.payload, bool(made), texts


def obtain_with_threads(talk: Talk, root: Path) -> tuple[int, int]:
    """Obtain one artifact from four threads at once; returns the number of those who made it, and of those who got it."""
    import threading

    made, got = [], []
    barrier = threading.Barrier(4)

    def make() -> Any:
        made.append(1)
        time.sleep(0.2)  # not for the result: it keeps the others waiting rather than too late
        return artifact(b"made once")

    def work() -> None:
        barrier.wait()
        got.append(Cache(options(root)).obtain(key(), "graph", make).artifact)

    talk.send("ready")
    talk.receive()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(made), got.count(artifact(b"made once"))


def content(number: int) -> bytes:
    return f"content of {number};".encode() * (50 + 7 * number)


def use_many(talk: Talk, root: Path, seed: int, graphs: int, cache_size: int) -> tuple[int, int, list[str]]:
    """Obtain each of `graphs` artifacts in a random order, each as a new process would. Returns (hits, made, warnings)."""
    numbers = list(range(graphs))
    random.Random(seed).shuffle(numbers)
    given = options(root, cache_size=cache_size)
    made: list[int] = []
    hits = 0

    def make(number: int) -> Any:
        made.append(number)
        return artifact(content(number))

    with heard() as texts:
        for number in numbers:
            forget()
            found = Cache(given).obtain(key(str(number)), "graph", lambda number=number: make(number))
            assert found.artifact == artifact(content(number)), "a wrong hit"
            hits += found.level != "miss"
    return hits, len(made), texts


def write_many(talk: Talk, root: Path, name: bytes, replace: bool, count: int) -> None:
    talk.send("ready")
    talk.receive()
    for number in range(count):
        LocalStore(root).write(key("0" if replace else str(number)), artifact(name * 50_000), replace)


def read_until_all_are_there(talk: Talk, root: Path, names: list[bytes], count: int) -> tuple[int, bool]:
    """Read entries, which raises if half of one is seen, until all are there. Returns how many, and whether there were misses."""
    talk.send("ready")
    talk.receive()
    good = [artifact(name * 50_000) for name in names]
    missing, misses, seen = set(range(count)), 0, {}
    while missing:
        for number in sorted(missing):
            found = LocalStore(root).read(key(str(number)))
            if found is None:
                misses += 1
                continue
            assert found in good
            missing.discard(number)
            seen[number] = found
    for number, found in seen.items():
        assert LocalStore(root).read(key(str(number))) == found, "an entry changed"
    return len(seen), misses > 0


def read_while_replaced(talk: Talk, root: Path, names: list[bytes]) -> set[bytes]:
    """Read one entry, which is always there, until told to stop. Returns the first letters of what was seen."""
    good = {artifact(name * 50_000).payload for name in names}
    seen: set[bytes] = set()
    talk.send("ready")
    while not talk._connection.poll():
        found = LocalStore(root).read(key("0"))
        assert found is not None, "a miss in a moment of replacement"
        assert found.payload in good
        seen.add(found.payload[:1])
    talk.receive()
    return seen


def become(user: int, group: int = 65534) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)


def use_as(talk: Talk, root: Path, user: int, group: int, mode: str, programs: list[str]) -> tuple[list[str], list[str]]:
    """As another user (if this is root), obtain each of `programs` as a new process would. Returns levels and warnings."""
    os.umask(0o022)
    become(user, group)
    levels = []
    with heard() as texts:
        for program in programs:
            forget()
            levels.append(Cache(options(root, mode)).obtain(key(program), "graph", artifact).level)
            assert Cache(options(root, mode)).lookup(key(program)).level == "memory"
    return levels, texts


def fill_a_disk(talk: Talk, root: Path, size: int) -> tuple[str, list[str], list[str], bool]:
    """Put artifacts on a disk of `size` bytes that has no room for them.

    Returns how the disk was made, levels in this process, warnings, and whether the directory holds only whole entries.
    """
    kind = "file system" if _mount_small(root, size) else "limit"
    if kind == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 5, size // 5))
    cache = Cache(options(root / "cache"))
    with heard() as texts:
        levels = []
        for number in range(6):
            cache.put(key(str(number)), artifact(bytes(size // 4)))
            levels.append(cache.lookup(key(str(number))).level)
        cache.put(key("small"), artifact())
    assert cache._local.read(key("small")) == artifact(), "what there is room for is still stored"
    whole = all(cache._local.read(found) is not None for found in cache._local.stored_keys())
    return kind, levels, texts, whole and not os.listdir(root / "cache" / "tmp")


def _mount_small(path: Path, size: int) -> bool:
    """Mount a file system of `size` bytes on `path`, seen by this process alone, where the system lets us."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) != 0:  # CLONE_NEWNS
        return False
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC, MS_PRIVATE
    return bool(libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"size={size}".encode()) == 0)
