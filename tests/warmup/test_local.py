"""Compiles on this machine: every way in which a compiling process can end, and how many run at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_dynamo.warmup import local, process
from neuron_dynamo.warmup.local import compile_locally
from neuron_dynamo.warmup.process import WorkerProcess
from neuron_dynamo.warmup.summary import Outcome
from tests.warmup.items import item

GIGABYTE = 10**9


@pytest.fixture(autouse=True)
def fake_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-S", str(Path(__file__).with_name("fake_worker.py"))))


def outcomes(items: list, jobs: int = 2, memory: int = 100 * GIGABYTE, timeout: float | None = None) -> dict[str, Outcome]:
    return {outcome.item.name: outcome for outcome in compile_locally(items, jobs, memory, timeout)}


def test_each_end_of_a_task(tmp_path: Path) -> None:
    once = f"once {tmp_path / 'marker'}"
    found = outcomes([item(tmp_path, name) for name in ("fine", "fail exit code 70", "crash", once)])
    got = {name: (outcome.status, outcome.attempts) for name, outcome in found.items()}
    # The compiler's own answer is final; a death is tried once more.
    assert got == {"fine": ("compiled", 1), "fail exit code 70": ("failed", 1), "crash": ("failed", 2), once: ("compiled", 2)}
    assert found["fail exit code 70"].message == "exit code 70"
    assert found["crash"].message == "the compiling process ended with signal SIGSEGV\nlast words"
    assert found["fine"].seconds == 0.5


def test_a_lost_program_fails(tmp_path: Path) -> None:
    lost = item(tmp_path, "fine")
    lost.wanted.path.unlink()
    outcome = outcomes([lost])["fine"]
    assert outcome.status == "failed" and "FileNotFoundError" in outcome.message


def test_timeout(tmp_path: Path) -> None:
    found = outcomes([item(tmp_path, "hang"), item(tmp_path, "fine")], timeout=1.5)
    assert (found["hang"].status, found["hang"].attempts) == ("failed", 2)
    assert found["hang"].message == "the compile took more than 1.5 seconds"
    assert found["fine"].status == "compiled"


def test_a_worker_that_outgrows_the_bound_is_ended(tmp_path: Path) -> None:
    found = outcomes([item(tmp_path, "grow 200"), item(tmp_path, "fine")], memory=100 * 2**20)
    assert (found["grow 200"].status, found["grow 200"].attempts) == ("failed", 2)
    assert "no more than 100 MB are allowed" in found["grow 200"].message
    assert found["fine"].status == "compiled"


@pytest.mark.parametrize(("memory", "most"), [(100 * GIGABYTE, 3), (1500 * 2**20, 2), (1000 * 2**20, 1)])
def test_estimates_bound_how_many_run_at_once(tmp_path: Path, memory: int, most: int) -> None:
    log = tmp_path / "log"
    found = outcomes([item(tmp_path, f"log {log}", size=100 + n) for n in range(6)], jobs=3, memory=memory)
    assert [outcome.status for outcome in found.values()] == ["compiled"]  # one name
    running = highest = 0
    for line in log.read_text().splitlines():
        running += 1 if line.startswith("begin") else -1
        highest = max(highest, running)
    assert log.read_text().count("begin") == 6 and 1 <= highest <= most


def test_closing_ends_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers: list[WorkerProcess] = []

    class Noted(WorkerProcess):
        def __init__(self, limit: int = 0) -> None:
            super().__init__(limit)
            workers.append(self)

    monkeypatch.setattr(local, "WorkerProcess", Noted)
    stream: Iterator[Outcome] = compile_locally([item(tmp_path, name) for name in ("fine", "hang")], 2, GIGABYTE * 100)
    assert next(stream).item.name == "fine"
    stream.close()  # would wait an hour if the other were left alone
    assert workers and not any(worker.alive for worker in workers)


def test_a_worker_ends_with_its_owner(tmp_path: Path) -> None:
    worker = WorkerProcess()
    assert worker.alive and worker.resident() > 0
    worker.close()
    assert not worker.alive and worker.resident() == 0


def test_defaults() -> None:
    assert local.default_jobs() >= 1
    assert 2**30 <= local.default_memory() < 2**50
