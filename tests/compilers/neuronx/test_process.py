"""A child that floods, hangs, forks or dies, and the machine-wide limit on their number."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from neuron_dynamo.compilers.neuronx import process
from neuron_dynamo.compilers.neuronx.process import run
from neuron_dynamo.compilers.neuronx.slots import MEMORY, jobs, slot

FOREVER = "exec sleep 600"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    """Whether a process ends; generous, as the machine may be busy."""
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def time_flies(ready: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours pass for `run` once it has looked at its clock after `ready`: so no time limit depends on the machine's speed."""
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (10_000 if ready() and next(looks) else 0), sleep=time.sleep)
    monkeypatch.setattr(process, "time", clock)


def shell(script: str, folder: Path, **given: object) -> object:
    return run(["/bin/sh", "-c", script], folder, **given)  # type: ignore[arg-type]


def test_both_streams_and_the_folder(tmp_path: Path) -> None:
    done = shell("pwd; echo trouble >&2; exit 7", tmp_path)
    assert (done.returncode, done.output, done.timed_out) == (7, f"{tmp_path}\ntrouble\n", False)


def test_full_pipes_do_not_block(tmp_path: Path) -> None:
    script = "import sys\nfor i in range(3000): sys.stdout.write('o' * 999 + chr(10)); sys.stderr.write('e' * 999 + chr(10))"
    done = run([sys.executable, "-S", "-c", script], tmp_path)
    assert done.returncode == 0
    assert len(done.output) == done.output.count("o") + done.output.count("e") + done.output.count("\n") == 6_000_000


def test_the_middle_of_a_very_long_output_is_left_out(tmp_path: Path) -> None:
    script = "import sys\nprint('first')\nfor i in range(30): sys.stdout.write('x' * 1000000)\nprint('last')"
    done = run([sys.executable, "-S", "-c", script], tmp_path)
    assert done.output.startswith("first\n") and done.output.endswith("last\n")
    assert len(done.output) < 10_000_000 and "bytes left out" in done.output


def test_a_signal_is_told(tmp_path: Path) -> None:
    assert shell("kill -KILL $$", tmp_path).returncode == -signal.SIGKILL


def test_time_out_ends_the_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child"
    time_flies(lambda: child.exists() and child.read_text().endswith("\n"), monkeypatch)
    done = shell(f"echo begun; sleep 600 & echo $! > child; {FOREVER}", tmp_path, timeout=5000)
    assert (done.timed_out, done.output) == (True, "begun\n") and done.returncode < 0
    assert gone(int(child.read_text()))


def test_a_group_that_ignores_the_request_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron_dynamo.compilers.neuronx.process._GRACE", 0.2)
    time_flies((tmp_path / "deaf").exists, monkeypatch)
    done = shell("trap '' TERM; echo > deaf; while :; do sleep 1; done", tmp_path, timeout=5000)
    assert (done.timed_out, done.returncode) == (True, -signal.SIGKILL)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_cancelling_ends_the_whole_group(error: type[BaseException], tmp_path: Path) -> None:
    def tick(seconds: float) -> None:
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text().endswith("\n"):
            raise error

    with pytest.raises(error):
        shell(f"sleep 600 & echo $$ $! > child; {FOREVER}", tmp_path, tick=tick)
    assert all(gone(int(pid)) for pid in (tmp_path / "child").read_text().split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_our_own_end_ends_the_whole_group(number: signal.Signals, tmp_path: Path) -> None:
    """No handler of ours runs then: what was started must not go on for hours."""
    family = f"import os, time; open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)"
    ours = tmp_path / "ours.py"
    ours.write_text(
        f"import runpy, sys; from pathlib import Path; run = runpy.run_path({process.__file__!r})['run']\n"
        f"run([sys.executable, '-S', '-c', 'import os; os.fork()\\n' + {family!r}], Path({str(tmp_path)!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-S", str(ours)])
    deadline = time.monotonic() + 120
    while len(pids := (tmp_path / "pids").read_text().split() if (tmp_path / "pids").is_file() else []) < 2:
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(number)
    assert parent.wait(60) == -number
    while any(alive(int(pid)) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_left_behind_does_not_keep_us(tmp_path: Path) -> None:
    done = shell("sleep 600 & echo $! > child; echo done", tmp_path)
    assert (done.returncode, done.output) == (0, "done\n") and done.seconds < 300
    assert gone(int((tmp_path / "child").read_text()))


def test_a_program_that_closes_its_streams_is_waited_for(tmp_path: Path) -> None:
    done = shell("exec >&- 2>&-; sleep 0.3; echo late > late; exit 4", tmp_path)
    assert done.returncode == 4 and (tmp_path / "late").exists()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        run([str(tmp_path / "absent")], tmp_path)


def test_the_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobs(5) == 5
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for memory, expected in ((MEMORY // 2, 1), (5 * MEMORY, 5), (900 * MEMORY, 32)):
        monkeypatch.setattr(os, "sysconf", lambda name, memory=memory: 1 if name == "SC_PAGE_SIZE" else memory)
        assert jobs(None) == expected


def test_slots_are_few_and_come_back(tmp_path: Path) -> None:
    turned_away = threading.Event()
    got: list[int] = []

    def third() -> None:
        with slot(2, tmp_path, turned_away.set) as number:
            got.append(number)

    with slot(2, tmp_path) as first:
        with slot(2, tmp_path) as second:
            assert {first, second} == {0, 1}
            waiting = threading.Thread(target=third)
            waiting.start()
            assert turned_away.wait(60) and not got
        waiting.join(60)
    assert got == [second]


def test_slots_of_a_dead_process_are_free(tmp_path: Path) -> None:
    script = f"""
import fcntl, os, time
handle = os.open({str(tmp_path / "slot0")!r}, os.O_RDWR | os.O_CREAT)
fcntl.flock(handle, fcntl.LOCK_EX)
os.kill(os.getpid(), 9)"""
    assert run([sys.executable, "-S", "-c", script], tmp_path).returncode == -9
    with slot(1, tmp_path) as number:
        assert number == 0


def test_where_files_cannot_be_locked_there_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with slot(1, tmp_path / "file" / "below") as number:
        assert number == -1
