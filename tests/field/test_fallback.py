"""Field cases of the kinds FALLBACK and API: devices, ops without a lowering, Python arguments, names, autocast."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import neuron_dynamo
from neuron_dynamo.errors import FallbackWarning
from tests.field.check import compiled, host_ops

Pair = namedtuple("Pair", ["left", "right"])


def test_devices_and_names() -> None:
    """B171: the backend is listed, takes CPU tensors, and names the device that it does not take."""
    assert "neuron" in torch._dynamo.list_backends()
    torch.testing.assert_close(compiled(lambda x: x + 1)(torch.ones(2)), torch.full((2,), 2.0))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"ND003[^\n]*meta(.|\n)*CPU"):
        compiled(lambda x: x + 1)(torch.ones(2, device="meta"))


def test_an_op_on_the_host_costs_one_compilation() -> None:
    """B173: a hundred calls; one capture, one warning, right every time."""

    @torch.library.custom_op("field_cases::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return x + x

    doubled.register_fake(torch.empty_like)

    def fn(x: Tensor) -> Tensor:
        return doubled(x @ x.t()).exp() + x.sum()

    counter = CompileCounterWithBackend("neuron")
    f = torch.compile(fn, backend=counter, fullgraph=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(100):
            x = torch.full((3, 4), 0.1 * step) + torch.eye(3, 4)
            torch.testing.assert_close(f(x), fn(x), rtol=1e-3, atol=1e-3)
    assert counter.frame_count == 1 and len(neuron_dynamo.reports()) == 1
    assert sum(issubclass(w.category, FallbackWarning) for w in caught) <= 1
    assert host_ops() == ["field_cases.doubled.default"]


@dataclasses.dataclass
class Settings:
    scale: float
    name: str | None = None
    parts: tuple[int, ...] = (1, 2)


def test_python_arguments() -> None:
    """B175: bool, None, str, dict, dataclass, tuple, list and namedtuple, in and out."""

    def fn(x: Tensor, flag: bool, nothing: None, mode: str, table: dict[str, Any], settings: Settings, pair: Pair, *rest: Tensor) -> Any:
        y = x * settings.scale + table["bias"] + sum(settings.parts) + pair.left
        y = y.relu() if flag else y.neg()
        y = y.sum() if mode == "sum" else y.mean()
        return {"y": y, "pair": Pair(y + 1, flag), "rest": [r * 2 for r in rest], "nothing": nothing, "mode": mode}

    f = compiled(fn)
    for flag in (True, False):
        for mode in ("sum", "mean"):
            args = (torch.randn(3), flag, None, mode, {"bias": torch.ones(3), "unused": "text"}, Settings(0.5), Pair(torch.ones(3), 2))
            rest = (torch.randn(2), torch.randn(1))
            got, wanted = f(*args, *rest), fn(*args, *rest)
            assert got.keys() == wanted.keys() and type(got["pair"]) is Pair
            torch.testing.assert_close([got["y"], got["pair"].left, *got["rest"]], [wanted["y"], wanted["pair"].left, *wanted["rest"]])
            assert (got["pair"].right, got["nothing"], got["mode"]) == (flag, None, mode)


def test_by_name_without_import() -> None:
    """B177: in a process that imports nothing of ours."""
    script = (
        "import sys, torch; f = torch.compile(lambda x: x * 2 + 1, backend='neuron'); "
        "print(f(torch.arange(3.)).tolist(), 'neuron_dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[1.0, 3.0, 5.0] True"


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("training", [False, True])
def test_autocast(where: str, training: bool) -> None:
    """B179"""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    def fn(x: Tensor) -> Tensor:
        if where == "outside":
            return model(x)
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
            with torch.autocast("cpu", enabled=False):
                return y.float() * 2

    x = torch.randn(3, 8)
    results = []
    for f in (fn, compiled(fn)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=where == "outside"), torch.set_grad_enabled(training):
            out = f(x)
        if training:
            out.float().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters() if training)])
    assert results[1][0].dtype == results[0][0].dtype
    torch.testing.assert_close(results[1], results[0], rtol=2e-2, atol=2e-2)
    assert not host_ops()
