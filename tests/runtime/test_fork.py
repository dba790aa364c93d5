"""What a forked child may do: nothing with an inherited client, everything without one, and never hang."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRELUDE = """
import os, sys, torch
from neuron_dynamo import xla
from neuron_dynamo.errors import ForkError
from tests.host_programs import add, build, spec

def in_child(work):
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit(0)  # a full interpreter shutdown, not os._exit
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def run():
    a = torch.full((64, 64), 2.0)
    assert build(add(spec(64, 64)))([a, a])[0].sum().item() == 4 * 64 * 64
"""


def run(code: str) -> str:
    """Standard output of `code` after PRELUDE; it must end by itself and well."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (".", os.environ.get("PYTHONPATH"))))}
    result = subprocess.run([sys.executable, "-c", PRELUDE + code], env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """What one process saw: a fork before its client existed, workers of a loader, and a fork after all."""
    return run(CODE).splitlines()


CODE = """
from torch.utils.data import DataLoader

assert in_child(run) == 0
run()
print("both ran", flush=True)

adding = build(add(spec(4, 3)))
loader = DataLoader(torch.arange(24.0).view(8, 3), batch_size=4, num_workers=2, multiprocessing_context="fork")
print([adding([batch, batch])[0].sum().item() for batch in loader], flush=True)

program = add(spec(64, 64))
executable = build(program)
a = torch.ones(64, 64)
executable([a, a])
def work():
    for use in (lambda: executable([a, a]), lambda: build(program), lambda: xla.compile(program.stablehlo)):
        try:
            use()
        except ForkError as error:
            assert "spawn" in str(error) and error.code == "ND041", error
            print("refused", flush=True)
    print((a + a).sum().item(), flush=True)
assert in_child(work) == 0
assert executable([a, a])[0].sum().item() == 2 * 64 * 64
print("parent goes on")
"""


def test_a_child_forked_before_the_client_existed_works(lines: list[str]) -> None:
    assert lines[0] == "both ran"


def test_data_loader_workers_that_never_touch_xla(lines: list[str]) -> None:
    assert lines[1] == "[132.0, 420.0]"


def test_a_child_with_an_inherited_client_gets_an_error_not_a_hang(lines: list[str]) -> None:
    assert lines[2:] == ["refused"] * 3 + ["8192.0", "parent goes on"]
