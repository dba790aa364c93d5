"""Real processes on one directory: publishing together, dying at each step, and reading meanwhile."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from neuron_dynamo.cache.local import LocalStore
from tests.cache.samples import artifact, key

ROOT = Path(__file__).parents[2]


def start(script: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """(step, name of the OS call) at which a child was killed while publishing to <folder>/<step>, and the folder."""
    folder = tmp_path_factory.mktemp("killed")
    script = """
        import os, signal, sys
        from pathlib import Path
        from neuron_dynamo.cache.local import LocalStore
        from tests.cache.samples import artifact, key

        CALLS = ("mkdir", "open", "fsync", "rename", "close")

        def kill_before(step):
            count = 0
            def wrap(name, real):
                def call(*args, **kwargs):
                    nonlocal count
                    count += 1
                    if count == step:
                        os.write(1, f"{step} {name}\\n".encode())
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **kwargs)
                return call
            for name in CALLS:
                setattr(os, name, wrap(name, getattr(os, name)))
            import builtins
            builtins.open = wrap("file", open)

        step = 0
        while True:
            step += 1
            child = os.fork()
            if child == 0:
                kill_before(step)
                LocalStore(Path(sys.argv[1], str(step))).write(key(), artifact())
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0
                os.write(1, f"{step} finished\\n".encode())
                break
    """
    lines = [line.split() for line in finish(start(script, folder)).splitlines()]
    return [(int(step), call) for step, call in lines], folder


def test_killed_at_every_step_of_a_publish(killed):
    steps, folder = killed
    calls = [call for _, call in steps]
    assert {"mkdir", "file", "fsync", "rename", "finished"} <= set(calls)
    assert calls.count("fsync") == 4  # three files and their folder
    for step, call in steps:
        store = LocalStore(folder / str(step))
        expected = artifact() if call == "finished" else None
        assert store.read(key()) == expected, (step, call)
        store.write(key(), artifact())
        assert store.read(key()) == artifact(), (step, call)
        assert not (store.root / "quarantine").exists()


def test_drafts_of_the_dead_are_never_read(killed):
    steps, folder = killed
    [before_rename] = [step for step, call in steps if call == "rename"]
    store = LocalStore(folder / str(before_rename))
    [draft] = (store.root / "tmp").iterdir()
    assert sorted(path.name for path in draft.iterdir()) == ["artifact.bin", "manifest.json", "program.mlir.bc"]
    store.write(key("p1"), artifact())
    assert [found.digest for found in store.stored_keys() if found.digest != key().digest] == [key("p1").digest]
    assert draft.exists()


WRITER = """
    import sys
    from pathlib import Path
    from neuron_dynamo.cache.local import LocalStore
    from tests.cache.samples import artifact, key
    print("ready", flush=True); sys.stdin.readline()
    store = LocalStore(Path(sys.argv[1]))
    for number in range(40):
        store.write(key(str(number)), artifact(sys.argv[2].encode() * 50_000))
"""

READER = """
    import sys
    from pathlib import Path
    from neuron_dynamo.cache.local import LocalStore
    from tests.cache.samples import artifact, key
    print("ready", flush=True); sys.stdin.readline()
    store = LocalStore(Path(sys.argv[1]))
    good = {artifact(name * 50_000).payload for name in (b"a", b"b")}
    missing, misses, seen = set(map(str, range(40))), 0, {}
    while missing:
        for number in sorted(missing):
            found = store.read(key(number))  # raises if it sees half an entry
            if found is None:
                misses += 1
            else:
                assert found.payload in good and found.blobs["program.mlir.bc"].endswith(found.payload)
                missing.discard(number)
                seen[number] = found.payload
    for number, payload in seen.items():
        assert store.read(key(number)).payload == payload, "an entry changed"
    print(len(seen), misses > 0)
"""


def test_readers_never_see_half_an_entry_while_two_processes_publish(tmp_path):
    processes = [start_waiting(READER, tmp_path), start_waiting(WRITER, tmp_path, "a"), start_waiting(WRITER, tmp_path, "b")]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert finish(processes[0]) == "40 True\n"
    finish(processes[1])
    finish(processes[2])
    assert list((tmp_path / "tmp").iterdir()) == []


def start_waiting(script: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_disk_that_takes_no_more_bytes(tmp_path):
    """A real failing write: the kernel refuses bytes past a file size limit."""
    script = """
        import resource, signal, sys, warnings
        from neuron_dynamo.cache import Cache
        from tests.cache.samples import artifact, key, options
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache = Cache(options(sys.argv[1]))
            for number in range(3):
                cache.put(key(str(number)), artifact(bytes(200_000)))
                assert cache.lookup(key(str(number))).level == "memory"
        cache.put(key("small"), artifact())
        print(len(caught), caught[0].category.__name__)
    """
    assert finish(start(script, tmp_path)) == "1 CacheWarning\n"
    store = LocalStore(tmp_path)
    assert [found.digest for found in store.stored_keys()] == [key("small").digest]
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.fixture
def open_folder():
    """A folder that every user may enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.parametrize("mode", ["on", "readonly"])
def test_directory_of_another_user(open_folder, mode):
    """Unwritable by mode bits: the child gives up root's rights, if it has them, before it looks."""
    store = LocalStore(open_folder / "cache")
    store.root.mkdir()
    store.write(key(), artifact())
    store.root.chmod(0o555)
    script = """
        import os, sys, warnings
        from neuron_dynamo.cache import Cache
        from tests.cache.samples import artifact, key, options
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache = Cache(options(sys.argv[1], sys.argv[2]))
            print(cache.lookup(key()).level)
            for number in range(3):
                cache.put(key(str(number)), artifact())
                print(cache.lookup(key(str(number))).level)
        print(len(caught))
    """
    try:
        output = finish(start(script, store.root, mode)).split()
    finally:
        store.root.chmod(0o755)
    assert output == ["disk", "memory", "memory", "memory", "1" if mode == "on" else "0"]
