"""Equal computations give byte-equal Programs in other processes, files, line offsets, checkouts and hash seeds."""

from __future__ import annotations

import os
import shutil
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
for probability in sys.argv[2:]:
    torch._dynamo.reset()
    model = {cls}()
    model.drop.p = float(probability)
    for graph in neuron_dynamo.inspect(model, torch.randn(4, 8)).graphs:
        for program in graph.programs:
            print(graph.kind, program.program.hex())
"""


def _programs(directory: Path, name: str, text: str, hash_seed: str, *arguments: str, root: Path = ROOT) -> list[str]:
    directory.mkdir(parents=True)
    script = directory / name
    script.write_text(text)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
    run = subprocess.run(
        [sys.executable, str(script), *arguments], env=environment, cwd=directory, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.splitlines()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Forward and backward of the model, and of one that drops less."""
    text = SCRIPT.format(blank="", cls="Model", first="first", second="second")
    lines = _programs(tmp_path_factory.mktemp("here") / "a", "one.py", text, "0", "1", "0.5", "0.25")
    assert [line.split()[0] for line in lines] == ["forward", "backward"] * 2
    return lines


def test_other_checkout_hash_seed_file_line_and_names(reference: list[str], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "neuron_dynamo", tmp_path / "copy" / "neuron_dynamo", ignore=shutil.ignore_patterns("__pycache__"))
    text = SCRIPT.format(blank="# a comment\n" * 7, cls="Renamed", first="alpha", second="beta")
    assert _programs(tmp_path / "elsewhere", "other.py", text, "4711", "2", "0.5", root=tmp_path / "copy") == reference[:2]


def test_what_changes_the_result_changes_the_program(reference: list[str]) -> None:
    assert reference[0] != reference[2]
