"""Field cases of the kind WARMUP: caches that are filled in one process, or on one machine, and used in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import neuron_dynamo
from neuron_dynamo import cache
from neuron_dynamo.cli.main import main

ROOT = Path(__file__).parents[2]

JOB = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn

def forbidden(*args, **kwargs):
    raise AssertionError("compiled, lowered or traced")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.dropout(self.norm(self.first(x)).relu(), 0.25, self.training))

def parted(x, total):
    y = x * torch.tensor([1.0, 2.0, 3.0])
    torch._dynamo.graph_break()
    total.add_(y)
    return y.softmax(-1), total.t()

def positive(x):
    return x[x > 0] * 2

def run():
    torch.manual_seed(0)
    model = Net()
    training, results = torch.compile(model, backend="neuron"), []
    loss = training(torch.ones(4, 6)).square().sum()
    loss.backward()
    results += [loss, model.first.weight.grad, model.norm.running_mean]
    sizes = torch.compile(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), backend="neuron", dynamic=True)
    for rows in (3, 5):
        x = torch.full((rows, 6), 0.5, requires_grad=True)
        y = sizes(x).sum()
        y.backward()
        results += [y, x.grad]
    with torch.no_grad():
        results += torch.compile(parted, backend="neuron")(torch.full((2, 3), 0.5), torch.zeros(2, 3))
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            results.append(torch.compile(positive, backend="neuron")(torch.tensor([1.0, -1.0, 3.0])))
    return [value.detach().flatten().tolist() for value in results]

def counted():
    from torch._dynamo.utils import counters
    from neuron_dynamo.cache import stats

    now, aot = stats(), counters["aot_autograd"]
    asked = {name: aot["autograd_cache_" + name] for name in ("hit", "miss", "bypass")}
    return {"compiles": now.compiles, "lowerings": now.lowerings, "restored": now.restored, **asked}

def folders(place):
    os.environ.update(NEURON_DYNAMO_CACHE_DIR=place + "/ours", TORCHINDUCTOR_CACHE_DIR=place + "/torch", HOME=place)

def forbid():
    import torch._functorch._aot_autograd.graph_capture as capture
    from neuron_dynamo import xla
    from neuron_dynamo.compilers.host import HostCompiler

    HostCompiler.compile = xla.compile = forbidden
    for name in ("aot_dispatch_base_graph", "aot_dispatch_autograd_graph"):
        assert hasattr(capture, name)
        setattr(capture, name, forbidden)

place, bundle, answer = sys.argv[1:4]
folders(place)
report = {"ours at first": any(name.startswith("neuron_dynamo") for name in sys.modules)}
if os.path.exists(bundle):
    info = torch.compiler.load_cache_artifacts(open(bundle, "rb").read())
    report["loaded"] = len(info.aot_autograd_artifacts)
    report["ours after loading"] = any(name.startswith("neuron_dynamo") for name in sys.modules)
    forbid()
    report["bundle"] = run(), counted()
    folders(sys.argv[4])
    torch._dynamo.reset()
    report["directories"] = run(), counted()
    report["lowering imported"] = any(name.split(".")[0] == "torch_mlir" for name in sys.modules)
else:
    report["cold"] = run(), counted()
data, info = torch.compiler.save_cache_artifacts()
report["saved"] = info.aot_autograd_artifacts
if not os.path.exists(bundle):
    open(bundle, "wb").write(data)
json.dump(report, open(answer, "w"))
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reports of a job that compiles and saves a bundle; and of one, with the compiler removed, that runs from the bundle alone in another
    home with empty directories, then from the first one's directories."""
    root = tmp_path_factory.mktemp("jobs")
    (root / "job.py").write_text(JOB)
    reports = []
    for number, (place, *more) in enumerate((("one",), ("two", str(root / "one")))):
        (root / place).mkdir()
        answer = root / f"{number}.json"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NEURON_DYNAMO_")}
        run = subprocess.run(
            [sys.executable, root / "job.py", root / place, root / "bundle", answer, *more],
            env={**environment, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(number)},
            cwd=root / place,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        reports.append(json.loads(answer.read_text()))
    return reports[0], reports[1]


NOTHING = {"compiles": 0, "lowerings": 0, "miss": 0, "bypass": 0}
GRAPHS = {"restored": 7, "hit": 5}
"""Two graphs of the training, two of the symbolic one, two around the break, one with sizes from data: five calls of the backend."""


def test_cache_artifacts_are_saved_without_any_import_of_ours(jobs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """B049"""
    first, _ = jobs
    assert not first["ours at first"]
    _, counts = first["cold"]
    assert counts["miss"] == 5 and counts["compiles"] == counts["lowerings"] > 7
    ours = [name for name in first["saved"] if name.startswith("neuron_dynamo/")]
    assert len(ours) == counts["compiles"] + counts["lowerings"]  # each artifact, and each Program
    assert len(first["saved"]) == len(ours) + 5


def test_a_bundle_is_complete_without_a_compiler_and_in_a_process_that_knows_nothing_of_us(
    jobs: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """B051, B049: other home, empty directories, compiler and lowering removed; no graph is traced, lowered or compiled."""
    first, second = jobs
    assert not second["ours at first"] and not second["ours after loading"]
    assert second["loaded"] == len(first["saved"])
    values, counts = second["bundle"]
    assert values == first["cold"][0]
    assert counts == NOTHING | GRAPHS
    assert not second["lowering imported"]


def test_a_new_process_with_the_same_directories_does_nothing_twice(jobs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Training with dropout and running statistics, symbolic and data-dependent sizes, a graph break, writes into inputs, constants."""
    first, second = jobs
    values, counts = second["directories"]
    assert values == first["cold"][0]
    assert counts == NOTHING | {name: 2 * number for name, number in GRAPHS.items()}


def test_what_came_from_a_cache_is_saved_again(jobs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = jobs
    assert {name for name in second["saved"] if not name.startswith("neuron_dynamo/")} == {
        name for name in first["saved"] if not name.startswith("neuron_dynamo/")
    }
    assert len([name for name in second["saved"] if name.startswith("neuron_dynamo/")]) >= first["cold"][1]["compiles"]


def test_every_entry_point_means_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """B043: option, variable and default, as Python, command and torch.compile understand them; `where` names the place of the files."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def named(*flags: str) -> Path:
        assert main(["cache", "where", *flags]) == 0
        return Path(capsys.readouterr().out.strip())

    def used(size: int, **options: Any) -> None:
        torch.compile(lambda x: x + size, backend="neuron", options=options or None)(torch.ones(size))

    for size, (variable, option) in enumerate((("", ""), ("~/by variable", ""), ("~/by variable", "~/by option")), 1):
        monkeypatch.setenv("NEURON_DYNAMO_CACHE_DIR", variable)
        used(size, **({"cache_dir": option} if option else {}))
        key = neuron_dynamo.reports()[-1].key
        place = cache.where(option or None).path
        assert named(*(["--cache-dir", option] if option else [])) == place
        assert (place / "v1" / key[:2] / key / "artifact.bin").is_file()
        assert [entry.digest for entry in cache.entries(option or None, kind="artifact")] == [key]
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == [".cache", "by option", "by variable"]


def test_one_run_passes_by_the_cache_or_renews_it_and_wipes_nothing(tmp_path: Path) -> None:
    """B053: `off` neither reads nor writes, `refresh` compiles and replaces; every other entry stays as it was."""

    def job(factor: int, mode: str) -> dict[str, int]:
        before = cache.stats()
        torch._dynamo.reset()
        cache.store._memory.clear()  # as a new process begins
        f = torch.compile(lambda x: x * factor, backend="neuron", options={"cache": mode})
        assert torch.equal(f(torch.ones(3)), torch.full((3,), float(factor)))
        after = cache.stats()
        return {name: getattr(after, name) - getattr(before, name) for name in ("compiles", "lowerings", "disk", "stored")}

    def files() -> dict[Path, tuple[int, int]]:
        root = cache.where().path
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in root.rglob("artifact.bin")}

    assert job(2, "on")["compiles"] == job(3, "on")["compiles"] == 1
    stored = files()
    assert job(2, "off") == {"compiles": 1, "lowerings": 1, "disk": 0, "stored": 0}
    assert files() == stored
    assert job(2, "refresh")["compiles"] == 1
    renewed = files()
    assert renewed.keys() == stored.keys()
    changed = {path.parent.name for path in stored if stored[path] != renewed[path]}
    kinds = {entry.digest: entry.kind for entry in cache.entries()}
    assert sorted(kinds[digest] for digest in changed) in (["artifact"], ["artifact", "program"])
    assert job(2, "on")["compiles"] == job(3, "on")["compiles"] == 0
    assert cache.verify().bad == ()
