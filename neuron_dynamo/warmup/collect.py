"""Run jobs in processes of their own that collect their graphs, and read what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from neuron_dynamo.recording import CollectedGraph, read_spool
from neuron_dynamo.warmup.jobs import Job, Script
from neuron_dynamo.warmup.summary import Run

STANDARD_ERROR = 2


def collect(
    jobs: Sequence[Job], spool: Path, on_start: Callable[[str], None] = lambda label: None
) -> tuple[list[CollectedGraph], list[Run]]:
    """The graphs of all `jobs`, and how each process fared. One that fails keeps the graphs that it met until then.

    The processes run one after the other, in this folder and environment; what they print goes to standard error.
    """
    runs: list[Run] = []
    for job in jobs:
        if isinstance(job, Script):
            for rank in job.ranks.each():
                label = job.label if rank is None else f"{job.label} rank {rank}"
                on_start(label)
                runs.append(_run(label, _script_command(job, rank), spool))
        else:
            on_start(job.label)
            runs.append(_run(job.label, [sys.executable, "-m", "neuron_dynamo.warmup.model"], spool, json.dumps(asdict(job))))
    return read_spool(spool), runs


def _script_command(job: Script, rank: int | None) -> list[str]:
    target = ["-m", job.script] if job.module else [job.script]
    if rank is None:
        return [sys.executable, *target, *job.args]
    world = [str(job.ranks.world_size), str(rank)]
    return [sys.executable, "-m", "neuron_dynamo.warmup.ranks", *world, *target, *job.args]


def _run(label: str, command: list[str], spool: Path, given: str = "") -> Run:
    failure = spool / "failure"
    failure.unlink(missing_ok=True)
    environment = {**os.environ, "NEURON_DYNAMO_COLLECT": str(spool), "NEURON_DYNAMO_COLLECT_LABEL": label}
    start = time.perf_counter()
    code = subprocess.run(command, input=given or None, text=True, env=environment, stdout=STANDARD_ERROR, check=False).returncode
    seconds = time.perf_counter() - start
    if code == 0:
        return Run(label, seconds)
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    told = failure.read_text() if failure.exists() else "see what it printed"
    return Run(label, seconds, f"it ended with {end}: {told}")
