"""Benchmark of the backend beside eager PyTorch and Inductor; writes bench-results/bench.md and bench.json.

First call: a new process imports torch, builds the model and its inputs; then the clock runs over torch.compile() and the first
step, with everything that these import, trace, compile and load. Cold: the cache directories of all backends are new and
empty. Warm: a second new process with the directories of the first. The backends take turns, and who begins changes.
Trace alone: the same with torch.compile(backend="eager"), which Dynamo traces for and which then compiles nothing.
Step: in inference a call under no_grad; in training forward, loss (mean square of the logits) and backward, without optimizer.
Steady: median of single calls after warm-up, in one process, the backends in turns of several calls each. "Off eager" is the largest
difference of an output or gradient from eager's, relative to its norm.
Call of a graph with one op: torch.cat of 1, 10 or 100 tensors of four elements, all of Dynamo's guards included.
Peak memory: VmHWM of the process of a first call after three more steps, without Inductor's compile workers, which are other processes.
The last backend named is the subject of the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from tools._bench.measure import ROOT, Plan, measure
from tools._bench.tables import markdown

MODELS = ("mlp", "resnet", "bert", "llama", "gpt2", "vit")
MODES = ("inference", "training")


def machine() -> dict[str, Any]:
    """Where and with what this was measured."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        processor = next(line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    packages = {name: metadata.version(name) for name in ("torch", "torch-mlir", "jaxlib", "transformers")}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit or "unknown",
        "CPU": f"{processor} ({len(os.sched_getaffinity(0))} cores)",
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "Python": platform.python_version(),
        **packages,
    }


def sizes(models: tuple[str, ...]) -> dict[str, str]:
    """What each workload is, asked of a child: this process never imports torch."""
    code = f"import json; from tools._bench.models import build; print(json.dumps({{m: build(m).size for m in {models!r}}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def names(choices: tuple[str, ...] | None) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        given = tuple(part for part in text.split(",") if part)
        wrong = [part for part in given if choices is not None and part not in choices]
        if wrong or not given:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'} is not among {', '.join(choices or ())}")
        return given

    return parse


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repeat, few rounds, mlp and bert only (unless --models is given)")
    parser.add_argument("--models", type=names(MODELS), help=f"comma-separated, of {', '.join(MODELS)} (all)")
    parser.add_argument("--modes", type=names(MODES), default=MODES, help="comma-separated, of inference, training (both)")
    parser.add_argument(
        "--backends", type=names(None), default=("eager", "inductor", "neuron"), help="comma-separated (eager,inductor,neuron)"
    )
    parser.add_argument("--repeats", type=int, help="new processes for each first call (3; 1 if quick)")
    parser.add_argument("--rounds", type=int, help="turns of each backend in steady measurements (20; 5 if quick)")
    parser.add_argument("--calls", type=int, default=5, help="calls a turn (5)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one process may take (900)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-results", help="folder for bench.md and bench.json (bench-results)")
    given = parser.parse_args()
    plan = Plan(
        backends=given.backends,
        models=given.models or (("mlp", "bert") if given.quick else MODELS),
        modes=given.modes,
        repeats=given.repeats or (1 if given.quick else 3),
        rounds=given.rounds or (5 if given.quick else 20),
        calls=given.calls,
        timeout=given.timeout,
    )
    where = machine()
    described = sizes(plan.models)
    results = measure(plan, lambda line: print(line, file=sys.stderr, flush=True))
    text = markdown(results, plan, where, described)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "bench.md").write_text(text)
    (given.out / "bench.json").write_text(json.dumps({"machine": where, "sizes": described, **results.to_json()}, indent=1))
    print(text)
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
