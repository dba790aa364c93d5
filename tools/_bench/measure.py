"""Runs the measurements in child processes and collects them; a measurement that fails is recorded, never dropped."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OVERHEAD_ARGUMENTS = (1, 10, 100)
TRACE = "trace alone"
"""What every backend pays before it is called: `torch.compile(backend="eager")`, Dynamo's tracing and the import of it. It has no cache."""


@dataclass(frozen=True)
class Plan:
    """What to measure: `repeats` new processes for a first call, `rounds` turns of `calls` calls for a steady figure, `timeout` seconds."""

    backends: tuple[str, ...]
    models: tuple[str, ...]
    modes: tuple[str, ...]
    repeats: int
    rounds: int
    calls: int
    timeout: float


@dataclass
class Case:
    """One model in one mode; each dict is keyed by backend. Times in seconds, memory in bytes, all medians."""

    model: str
    mode: str
    cold: dict[str, float] = field(default_factory=dict)
    warm: dict[str, float] = field(default_factory=dict)
    steady: dict[str, float] = field(default_factory=dict)
    cold_peak: dict[str, float] = field(default_factory=dict)
    warm_peak: dict[str, float] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A measurement that a backend did not survive."""

    backend: str
    model: str
    mode: str
    what: str
    message: str


@dataclass
class Results:
    """Everything measured; `overhead` is keyed by the number of arguments, then by backend, in seconds."""

    cases: list[Case] = field(default_factory=list)
    overhead: dict[int, dict[str, float]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class ChildError(Exception):
    """A child process ended without an answer; the message is the last line that it wrote about it."""


def ask(request: dict[str, Any], caches: Path, timeout: float) -> dict[str, Any]:
    """The answer of `tools._bench.child` to a request, run with its caches below `caches`. Raises ChildError."""
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "NEURON_DYNAMO_CACHE_DIR": str(caches / "neuron_dynamo"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "tools._bench.child", json.dumps(request)]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ChildError(f"no answer within {timeout:.0f} s") from None
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    lines = [line for line in done.stderr.strip().splitlines() if line and not line[0].isspace()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    raise ChildError(f"exit code {done.returncode}: {(errors or lines or ['no message'])[-1][:300]}")


@contextmanager
def empty_caches() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="neuron-dynamo-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(plan: Plan, say: Callable[[str], None]) -> Results:
    """Every measurement of the plan; `say` receives a line before each."""
    results = Results()
    with empty_caches() as caches:
        for arguments in OVERHEAD_ARGUMENTS:
            say(f"per-call overhead, {arguments} arguments")
            request = {"what": "overhead", "arguments": arguments, "rounds": plan.rounds, "calls": 50}
            results.overhead[arguments] = together(request, plan, caches, results, f"{arguments} arguments", "call")["seconds"]
        for model in plan.models:
            for mode in plan.modes:
                case = Case(model, mode)
                results.cases.append(case)
                first_calls(case, plan, results, say)
                say(f"{model} {mode}: steady")
                request = {"what": "steady", "model": model, "mode": mode, "rounds": plan.rounds, "calls": plan.calls}
                answer = together(request, plan, caches, results, model, mode)
                case.steady, case.difference = answer["seconds"], answer.get("difference", {})
    return results


def first_calls(case: Case, plan: Plan, results: Results, say: Callable[[str], None]) -> None:
    """Cold and warm first calls of every backend in turns, each in a new process; the order turns with the repeat."""
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    failed: set[str] = set()
    for repeat in range(plan.repeats):
        everyone = (*plan.backends, TRACE)
        shift = repeat % len(everyone)
        for backend in everyone[shift:] + everyone[:shift]:
            with empty_caches() as caches:
                for state in ("cold", "warm"):
                    if backend in failed or (backend, state) in (("eager", "warm"), (TRACE, "cold")):
                        continue
                    say(f"{case.model} {case.mode}: first call, {backend} {state} ({repeat + 1}/{plan.repeats})")
                    request = {"what": "first_call", "backend": backend, "model": case.model, "mode": case.mode}
                    try:
                        answer = ask(request, caches, plan.timeout)
                    except ChildError as error:
                        failed.add(backend)
                        results.failures.append(Failure(backend, case.model, case.mode, f"{state} first call", str(error)))
                        continue
                    taken[state][backend].append(answer["seconds"])
                    taken[f"{state}_peak"][backend].append(answer["peak"])
    for name, by_backend in taken.items():
        setattr(case, name, {backend: statistics.median(values) for backend, values in by_backend.items()})


def together(request: dict[str, Any], plan: Plan, caches: Path, results: Results, model: str, mode: str) -> dict[str, Any]:
    """A measurement of all backends in one process. Where that process fails, each backend is tried alone and the survivors again."""
    try:
        return ask({**request, "backends": list(plan.backends)}, caches, plan.timeout)
    except ChildError as first:
        survivors = []
        for backend in plan.backends:
            try:
                ask({**request, "backends": [backend], "rounds": 1}, caches, plan.timeout)
                survivors.append(backend)
            except ChildError as error:
                results.failures.append(Failure(backend, model, mode, str(request["what"]), str(error)))
        if len(survivors) == len(plan.backends):
            results.failures.append(Failure("all in one process", model, mode, str(request["what"]), str(first)))
        elif survivors:
            try:
                return ask({**request, "backends": survivors}, caches, plan.timeout)
            except ChildError as error:
                results.failures.append(Failure(", ".join(survivors), model, mode, str(request["what"]), str(error)))
    return {"seconds": {}}
