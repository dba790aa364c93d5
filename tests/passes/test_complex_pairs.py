"""Complex graphs as pairs of real tensors: the rewritten graph lowers for Trainium and gives eager's numbers on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

import neuron_dynamo
from neuron_dynamo import options, report, target
from neuron_dynamo.lowering.pipeline import lower
from neuron_dynamo.passes.complex_pairs import complex_pairs
from neuron_dynamo.passes.output_views import HOST
from neuron_dynamo.placement import place
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import run, trace

TARGET = get_target("trn2")
X = torch.complex(torch.linspace(-2, 3, 24), torch.linspace(4, -1, 24)).reshape(4, 6)
Y = X.flip(0) * 0.3 - 1j
REAL = torch.linspace(0.1, 2, 24).reshape(4, 6)


def paired(fn: Callable[..., Any], *args: torch.Tensor) -> GraphModule:
    return complex_pairs(trace(lambda *t: tuple(fn(*t)), list(args)), TARGET)


def borders_only(gm: GraphModule) -> bool:
    """Whether every node with a complex value is a border, which the host runs."""
    inner = [n for n in gm.graph.nodes if n.op == "call_function" and HOST not in n.meta]
    values = [v for node in inner for n in (node, *node.all_input_nodes) for v in pytree.tree_leaves(n.meta["val"])]
    return not any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "arithmetic": (lambda x, y: (x * y, x + y, x - y * (2 - 1j), x / y, x / 2, x * 3j, 1 / x, 2 - x, x / (1 + 1j)), (X, Y)),
    "functions": (lambda x: (x.conj() * 2, x.abs(), x.angle(), x.exp(), x.log(), x.sgn(), x == 0, x != x, x.isnan()), (X,)),
    "reductions": (lambda x: (x.sum(), x.sum(1), x.mean(0), x.cumsum(1)), (X,)),
    "products": (lambda x, y: (x @ y.mH, torch.vdot(x[0], y[0]), torch.addmm(y[:, :4], x, y.T, beta=2j)), (X, Y)),
    "batched": (lambda x, y: (torch.bmm(x.view(2, 2, 6), y.view(2, 6, 2)),), (X, Y)),
    "moves": (
        lambda x, y: (torch.cat([x, y], 1), x[:, 1:3], x.reshape(6, 4), x.mT, x.flip(0), x.roll(1, 0), x.tril(), *x.split(2)),
        (X, Y),
    ),
    "broadcast parts": (lambda r: (torch.complex(r, r[0]), torch.complex(r[:, :1], r[:1])), (REAL,)),
    "parts": (lambda x: (x.real, x.imag, torch.view_as_real(x), x.conj().imag, x.bool()), (X,)),
    "mixed": (
        lambda x, r: (
            x * r,
            r * 1j,
            x + r,
            torch.view_as_complex(torch.stack([r, r], -1)),
            torch.where(r > 1, x, 0),
            r.to(torch.complex64),
        ),
        (X, REAL),
    ),
    "made": (lambda r: (torch.complex(r, -r), torch.polar(r, r), torch.full_like(r, 1 - 2j, dtype=torch.complex64)), (REAL,)),
    "written": (
        lambda x, r: (
            torch.slice_scatter(x, r[:, :3].to(x.dtype), 1, 0, 6, 2),
            torch.select_scatter(x, x[0], 0, 2),
            x.new_zeros(2),
            x.new_full((2,), 1j),
        ),
        (X, REAL),
    ),
    "fft": (
        lambda z: (torch.fft.fft(z), torch.fft.ifft2(z, norm="ortho"), torch.fft.irfft(z), torch.fft.irfft(z, 7), torch.fft.irfft2(z)),
        (X,),
    ),
    "rfft": (lambda r: (torch.fft.rfft(r), torch.fft.fft(r), torch.fft.rfft2(r, norm="forward"), torch.fft.ihfft(r)), (REAL,)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_eager_without_complex_programs(name: str) -> None:
    fn, args = CASES[name]
    gm = paired(fn, *args)
    assert borders_only(gm)
    torch.testing.assert_close(tuple(gm(*args)), tuple(fn(*args)), rtol=1e-5, atol=2e-5)


def test_division_of_extremes_does_not_overflow() -> None:
    x, y = torch.tensor([1e30 + 1e30j, 1 + 1j, 1j]), torch.tensor([2e30 - 1e30j, 1e-30 + 1e-30j, 0j])
    torch.testing.assert_close(paired(lambda x, y: (x / y,), x, y)(x, y)[0], x / y, equal_nan=True)


def test_other_graphs_are_left_alone() -> None:
    gm = trace(lambda x: (x * 2,), [REAL])
    assert complex_pairs(gm, TARGET) is gm
    gm = trace(lambda x: (x * 2,), [X])
    assert complex_pairs(gm, get_target("host")) is gm


def test_an_op_without_a_pair_form_runs_on_the_host_between_borders() -> None:
    gm = paired(lambda x: (torch.cosh(x * 2) * 3,), X)
    torch.testing.assert_close(gm(X)[0], torch.cosh(X * 2) * 3)
    placement = place(gm, options.Options(target="trn2"))
    assert {str(n.target): why for n, why in placement.forced.items()} == {"aten.cosh.default": "target trn2 has no torch.complex64"}


def test_lazy_bits_of_inputs_are_resolved() -> None:
    x = X.conj()
    torch.testing.assert_close(paired(lambda x: (x * 1j, x.imag), x)(x), (x * 1j, x.imag))


def test_rotary_embedding_is_one_real_program() -> None:
    def rope(q: torch.Tensor, turns: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = q.detach().requires_grad_()
        made = torch.view_as_real(torch.view_as_complex(q.reshape(2, 5, 3, 2)) * torch.view_as_complex(turns)).flatten(2)
        return made, torch.autograd.grad(made.square().sum(), q)[0]

    q, turns = torch.randn(2, 5, 6), torch.randn(5, 3, 2)
    gm = paired(rope, q, turns)
    assert not any(n.meta["val"].is_complex() for n in gm.graph.nodes if n.op == "call_function")
    program = lower(gm.graph, TARGET)
    assert "complex" not in str(program.signature)
    host = lower(gm.graph, dataclasses.replace(get_target("host"), dtypes=TARGET.dtypes))
    torch.testing.assert_close(tuple(run(host, [q, turns])), rope(q, turns))


@pytest.fixture
def host_without_complex(monkeypatch: pytest.MonkeyPatch) -> None:
    host = get_target("host")
    monkeypatch.setitem(target._TARGETS, "host", dataclasses.replace(host, dtypes=host.dtypes - {torch.complex64, torch.complex128}))
    torch._dynamo.reset()
    report.clear()


def placements() -> set[str]:
    return {op.placement for r in neuron_dynamo.reports() for op in r.ops}


@pytest.mark.usefixtures("host_without_complex")
def test_training_through_the_backend() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.fft.rfft(x) * w * (1 - 2j)
        return torch.fft.irfft(y).square().sum() + y.abs().sum()

    x, w = REAL.clone().requires_grad_(), torch.randn(4, 4, dtype=torch.complex64).requires_grad_()
    expected = torch.autograd.grad(loss(x, w), (x, w))
    actual = torch.autograd.grad(torch.compile(loss, backend="neuron", fullgraph=True)(x, w), (x, w))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert placements() == {"native", "runtime"}


@pytest.mark.usefixtures("host_without_complex")
def test_outputs_keep_strides_and_inputs_are_written() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2j)
        return x.mT * 3, x.conj() + 1

    ours, theirs = X.clone(), X.clone()
    expected, actual = fn(theirs), torch.compile(fn, backend="neuron", fullgraph=True)(ours)
    torch.testing.assert_close((actual, ours), (expected, theirs))
    assert [t.stride() for t in actual] == [t.stride() for t in expected]
    assert placements() == {"native", "runtime"}
