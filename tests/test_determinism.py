"""Equal computations give byte-equal Programs in other processes, files, line offsets, checkouts and hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SCRIPT = """
import sys
{blank}
import torch
import neuron_dynamo

class {cls}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.{first} = torch.nn.Linear(8, 16)
        self.{second} = torch.nn.LayerNorm(16)
        self.drop = torch.nn.Dropout(0.5)
    def forward(self, x):
        y = self.drop(torch.nn.functional.gelu(self.{first}(x)))
        y = self.{second}(y).view(2, 2, 4, 4)
        return torch.nn.functional.scaled_dot_product_attention(y, y, y).sum(-1), y.sort(-1).values, torch.cumsum(y, 0)

torch.manual_seed(int(sys.argv[1]))
report = neuron_dynamo.inspect({cls}(), torch.randn(4, 8))
for graph in report.graphs:
    for program in graph.programs:
        print(graph.kind, program.program.hex())
"""


def _programs(directory: Path, name: str, text: str, hash_seed: str, root: Path = ROOT, order: str = "1") -> list[str]:
    directory.mkdir(exist_ok=True)
    script = directory / name
    script.write_text(text)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
    run = subprocess.run(
        [sys.executable, str(script), order], env=environment, cwd=directory, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.splitlines()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    lines = _programs(tmp_path_factory.mktemp("a"), "one.py", SCRIPT.format(blank="", cls="Model", first="first", second="second"), "0")
    assert [line.split()[0] for line in lines] == ["forward", "backward"]
    return lines


def test_other_hash_seed_file_line_and_names(reference: list[str], tmp_path: Path) -> None:
    text = SCRIPT.format(blank="# a comment\n" * 7, cls="Renamed", first="alpha", second="beta")
    assert _programs(tmp_path / "elsewhere", "other.py", text, "4711", order="2") == reference


def test_other_checkout(reference: list[str], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(ROOT / "neuron_dynamo", tmp_path / "copy" / "neuron_dynamo", ignore=shutil.ignore_patterns("__pycache__"))
    text = SCRIPT.format(blank="", cls="Model", first="first", second="second")
    assert _programs(tmp_path / "b", "one.py", text, "123", root=tmp_path / "copy") == reference


def test_what_changes_the_result_changes_the_program(reference: list[str], tmp_path: Path) -> None:
    text = SCRIPT.format(blank="", cls="Model", first="first", second="second").replace("Dropout(0.5)", "Dropout(0.25)")
    assert _programs(tmp_path / "c", "one.py", text, "0")[0] != reference[0]
