"""Reports of users about keys of compile caches, B001 to B023: each second process here hits what it should, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import neuron_dynamo
from neuron_dynamo import cache
from neuron_dynamo.cache import CacheStats, toolchain
from neuron_dynamo.compilers.host import HostCompiler
from tests.aot_toy import new_process
from tests.field.check import compiled

ROOT = Path(__file__).parents[2]
_COUNTS = ("hits", "miss", "program_hits", "program_miss", "compiles", "lowerings", "restored")

# What two processes compile: the same functions in another order, file, line, with other names, and with a set for an option.
CHILD = """{comments}
import json, os, sys
import torch
import neuron_dynamo

class {cls}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.{layer} = torch.nn.Linear(8, 4)
        self.register_buffer("{scale}", torch.ones(4))
    def forward(self, {x}):  # {cls}
        return torch.nn.functional.gelu(self.{layer}({x})) * self.{scale}

def {first}({x}, y):
    {made} = {x}.sin() + y
    return {made} * torch.tensor([2.0, 3.0, 5.0])

def {second}({x}):
    return {x}.softmax(-1).sum(0)

OPTIONS = {{"compiler_args": {{"--internal-alpha", "--internal-beta=2", "--internal-gamma", "-O1", "--logfile={cls}"}}}}

def run(f, *args):
    return torch.compile(f, backend="neuron", options={{**OPTIONS, "model_name": "{cls}"}})(*args)

torch.manual_seed(0)
jobs = [
    lambda: run({cls}(), torch.arange(16.0).view(2, 8)).sum().backward(),
    lambda: run({first}, torch.ones(2, 3), torch.ones(3)),
    lambda: run({second}, torch.ones(5, 7)),
]
for job in jobs[:: {step}]:
    job()
stats = neuron_dynamo.cache.stats()
programs = {{p.key: p.program_key.digest for graph in neuron_dynamo.reports() for p in graph.programs}}
decisions = [[graph.kind, p.cache, p.lowered, p.why] for graph in neuron_dynamo.reports() for p in graph.programs]
torch._dynamo.reset()
torch.compile({second}, backend="neuron", options={{"compiler_args": "-O{level}"}})(torch.ones(5, 7))
(last,) = neuron_dynamo.reports()[-1].programs
missed = {{"key": last.key, "why": last.why, "lowered": last.lowered}}
json.dump({{"stats": stats.to_json(), "programs": programs, "decisions": decisions, "missed": missed}}, open(sys.argv[1], "w"))
"""
_NAMES = ("comments", "cls", "layer", "scale", "x", "first", "second", "made", "step", "level")
_ONE = dict(zip(_NAMES, ("", "Model", "layer", "scale", "x", "first", "second", "made", "1", "2"), strict=True))
_OTHER = dict(zip(_NAMES, ("# a comment\n" * 9, "Renamed", "alpha", "beta", "given", "zeta", "eta", "result", "-1", "3"), strict=True))


def _child(folder: Path, file: str, names: dict[str, str], cache_dir: Path, checkout: Path, **environment: str) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / file).write_text(CHILD.format(**names))
    settings = {
        "PYTHONPATH": str(checkout),
        "NEURON_DYNAMO_CACHE_DIR": str(cache_dir),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch_cache"),  # each its own: our levels alone are asked
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, file, "answer.json"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **settings, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """A process that filled a cache, another in every other circumstance with a copy of that cache, and the copy."""
    root = tmp_path_factory.mktemp("processes")
    checkout, copy = root / "checkout", root / "elsewhere" / "copied_cache"
    shutil.copytree(ROOT / "neuron_dynamo", checkout / "neuron_dynamo", ignore=shutil.ignore_patterns("__pycache__"))
    one = _child(root / "a", "one.py", _ONE, root / "cache", checkout, PYTHONHASHSEED="1")
    shutil.copytree(root / "cache", copy)
    checkout.rename(root / "moved_checkout")
    rank = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "NEURON_RT_VISIBLE_CORES": "3"}
    home = {"HOME": str(root / "home"), "USER": "other", "LOGNAME": "other"}
    other = _child(root / "b" / "c", "other.py", _OTHER, copy, root / "moved_checkout", PYTHONHASHSEED="4711", **rank, **home)
    return one, other, copy


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Fills the dict with what cache.stats() counted within."""
    before, counts = cache.stats(), dict.fromkeys(_COUNTS, 0)
    yield counts
    counts.update({name: getattr(cache.stats(), name) - getattr(before, name) for name in _COUNTS})


@pytest.fixture
def ours_alone() -> Iterator[None]:
    """Without PyTorch's AOTAutogradCache, which would answer before our levels are asked."""
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield


def run(fn: Any, *args: Any, **options: Any) -> dict[str, int]:
    """Counts of one call of `fn` as a new process makes it, its value checked against eager's."""
    with new_process(), counted() as counts:
        torch.testing.assert_close(compiled(fn, dynamic=False, **options)(*args), fn(*args))
    return counts


def decisions() -> list[tuple[str, str]]:
    return [(program.cache, program.lowered) for graph in neuron_dynamo.reports() for program in graph.programs]


def test_b001_another_shape_is_another_key(ours_alone: None) -> None:
    x, y = torch.randn(1, 3, 8, 8), torch.randn(2, 3, 8, 8)
    first, second, again = run(torch.relu, x), run(torch.relu, y), run(torch.relu, x)
    assert (first["miss"], second["miss"], second["program_miss"]) == (1, 1, 1)
    assert again == {**dict.fromkeys(_COUNTS, 0), "hits": 1, "program_hits": 1}


def test_b003_b011_b013_hash_seed_names_order_file_line_and_checkout(processes: tuple[dict[str, Any], dict[str, Any], Path]) -> None:
    one, other, _ = processes
    assert one["stats"]["compiles"] == one["stats"]["lowerings"] == one["stats"]["miss"] == one["stats"]["program_miss"] == 4
    assert other["programs"] == one["programs"]
    assert other["stats"]["program_unkeyed"] == one["stats"]["program_unkeyed"] == 0


def test_b017_a_copied_cache_is_used_by_another_user_at_another_path(processes: tuple[dict[str, Any], dict[str, Any], Path]) -> None:
    _, other, _ = processes
    stats = CacheStats(**other["stats"])
    assert (stats.compiles, stats.lowerings, stats.miss, stats.program_miss) == (0, 0, 0, 0)
    assert (stats.hits, stats.program_hits) == (4, 4)
    assert {tuple(decision[1:]) for decision in other["decisions"]} == {("disk", "disk", "")}


def test_b017_a_miss_names_the_part_that_differs(processes: tuple[dict[str, Any], dict[str, Any], Path]) -> None:
    _, other, copy = processes
    assert other["missed"]["lowered"] == "memory"
    assert other["missed"]["why"].endswith("differs in compiler_args (here '--optlevel=3', there '--optlevel=2')")
    (explanation,) = cache.explain(other["missed"]["key"], cache_dir=copy)
    assert [difference.part for difference in explanation.neighbours[0].differences] == ["compiler_args"]


def test_b005_the_configured_directory_is_used(tmp_path: Path, ours_alone: None) -> None:
    elsewhere = tmp_path / "configured"
    run(torch.sin, torch.ones(3), cache_dir=str(elsewhere))
    assert {entry.kind for entry in cache.entries(elsewhere)} == {"artifact", "program"} and not cache.entries()
    assert run(torch.sin, torch.ones(3), cache_dir=str(elsewhere))["hits"] == 1
    assert decisions()[-1] == ("disk", "disk")


def test_decisions_are_told_to_pytorchs_own_tools(monkeypatch: pytest.MonkeyPatch, ours_alone: None) -> None:
    told: dict[str, Any] = {}

    def trace(kind: str, metadata_fn: Any, payload_fn: Any) -> None:
        told[metadata_fn()["name"].rpartition("_")[2]] = payload_fn()

    run(torch.tan, torch.ones(3))
    monkeypatch.setattr("neuron_dynamo.logs.trace_structured", trace)
    run(torch.tan, torch.ones(3))
    counts = torch._dynamo.utils.counters["neuron_dynamo"]
    assert (counts["cache_disk"], counts["program_disk"]) == (1, 1)
    (decision,) = json.loads(told["cache"])
    (program,) = neuron_dynamo.reports()[-1].programs
    assert (decision["digest"], decision["artifact"], decision["program"], decision["why"]) == (program.key, "disk", "disk", "")
    assert decision["artifact_key"] == dict(program.cache_key.parts) and decision["program_key"] == dict(program.program_key.parts)


def test_b007_flags_of_the_compiler_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch, ours_alone: None) -> None:
    x = torch.ones(4)
    assert run(torch.cos, x, compiler_args="-O1")["compiles"] == 1
    assert run(torch.cos, x, compiler_args="-O2") == {**dict.fromkeys(_COUNTS, 0), "miss": 1, "compiles": 1, "program_hits": 1}
    assert run(torch.cos, x, compiler_args="--verbose=debug --optlevel 1")["compiles"] == 0
    plain = dict(HostCompiler().identity())
    for flags in ("--xla_cpu_max_isa=AVX2 --xla_foo=1", "--xla_foo=1 --xla_cpu_max_isa=AVX2 --xla_dump_to=/tmp/x"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        changed = dict(HostCompiler().identity())
        assert {name for name in plain if plain[name] != changed[name]} == {"xla_flags"}
        assert changed["xla_flags"].endswith("--xla_cpu_max_isa=AVX2 --xla_foo=1")


def test_b009_the_version_is_the_imported_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, stale = tmp_path / "solver", tmp_path / "solver-9.9.dist-info"
    package.mkdir()
    stale.mkdir()
    (stale / "METADATA").write_text("Metadata-Version: 2.1\nName: solver\nVersion: 9.9\n")
    (package / "__init__.py").write_text("__version__ = '9.9'\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = toolchain.package_version("solver", "solver")
    (package / "__init__.py").write_text("__version__ = '1.0.1'\n")
    assert toolchain.package_version("solver", "solver") != before
    monkeypatch.setattr(torch, "__version__", "1.0")
    assert toolchain.torch_version().startswith("1.0+")


SCALE = [2.0]


@torch._dynamo.allow_in_graph
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE[0]


def test_b015_state_that_a_callable_under_checkpoint_reads() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda t: scaled(t).sin(), x, use_reentrant=False)

    x = torch.linspace(0, 1, 6, requires_grad=True)
    first = run(fn, x)
    SCALE[0] = 3.0
    try:
        changed, again = run(fn, x), run(fn, x)
    finally:
        SCALE[0] = 2.0
    assert first["compiles"] and changed["compiles"] and not changed["restored"]
    assert again["compiles"] == again["lowerings"] == 0


def test_b019_marked_dynamic_shapes_hit_one_by_one(ours_alone: None) -> None:
    def rows(hidden: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return hidden[index]

    def calls() -> dict[str, int]:
        with new_process(), counted() as counts:
            fn = compiled(rows)
            for height in (4, 6, 9):
                for width in (2, 3, 5):
                    hidden, index = torch.randn(height, 8), torch.arange(width) % height
                    torch._dynamo.mark_dynamic(hidden, 0)
                    torch._dynamo.mark_dynamic(index, 0)
                    torch.testing.assert_close(fn(hidden, index), rows(hidden, index))
        return counts

    first, second = calls(), calls()
    assert first["compiles"] == first["miss"] == 9
    assert second == {**dict.fromkeys(_COUNTS, 0), "hits": 9, "program_hits": 9}


def test_b021_a_second_run_of_training_compiles_nothing() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))

    def step() -> dict[str, int]:
        with new_process(), counted() as counts:
            compiled(model)(torch.ones(4, 6)).sum().backward()
            with torch.no_grad():
                compiled(model)(torch.ones(4, 6))
        return counts

    first, second = step(), step()
    assert (first["compiles"], first["lowerings"], first["restored"]) == (3, 3, 0)
    assert (second["compiles"], second["lowerings"], second["restored"]) == (0, 0, 3)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        third = step()
    assert (third["compiles"], third["lowerings"], third["hits"], third["program_hits"]) == (0, 0, 3, 3)
    assert {"trace", "aot", "passes", "lower", "compile", "load"} <= set(cache.stats().seconds)


def test_b023_two_numbers_that_become_equal() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, p0: float, p1: float) -> torch.Tensor:
        return torch.add(x, y, alpha=p0) - torch.add(y, x, alpha=p1)

    x, y = torch.randn(4), torch.randn(4)
    with counted() as counts:
        f = compiled(fn, dynamic=True)
        for p0, p1 in ((2.0, 2.0), (2.0, 3.0), (3.0, 3.0), (4.0, 5.0), (5.0, 4.0)):
            torch.testing.assert_close(f(x, y, p0, p1), fn(x, y, p0, p1))
    assert counts["compiles"] <= 5
    with new_process(), counted() as again:
        f = compiled(fn, dynamic=True)
        for p0, p1 in ((2.0, 3.0), (2.0, 2.0), (5.0, 4.0)):
            torch.testing.assert_close(f(x, y, p0, p1), fn(x, y, p0, p1))
    assert again["compiles"] == 0
