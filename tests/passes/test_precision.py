"""Narrowing of types that a target lacks."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import neuron_dynamo
from neuron_dynamo.errors import PrecisionError, PrecisionWarning
from neuron_dynamo.passes.precision import precision
from neuron_dynamo.target import get_target


def _graph() -> tuple[torch.fx.GraphModule, torch.Tensor]:
    x = torch.randn(3, 4, dtype=torch.float64)
    return make_fx(lambda x: (torch.softmax(x.to(torch.float64) + torch.ones(4, dtype=torch.float64), -1), x.float()), tracing_mode="fake")(
        x
    ), x


def test_computes_narrower_and_returns_the_traced_types() -> None:
    gm, x = _graph()
    with pytest.warns(PrecisionWarning, match=r"ND111.*trn2.*float64"):
        narrow = precision(gm, get_target("trn2"), "warn")
    kinds = {n.meta["val"].dtype for n in narrow.graph.nodes if "softmax" in str(n.target)}
    assert kinds == {torch.float32}
    wanted, got = gm(x), narrow(x)
    assert [t.dtype for t in got] == [torch.float64, torch.float32]
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)


def test_narrow_is_silent_and_error_raises() -> None:
    gm, _ = _graph()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        precision(gm, get_target("trn2"), "narrow")
    with pytest.raises(PrecisionError, match=r"ND012.*float64"):
        precision(gm, get_target("trn2"), "error")


def test_host_keeps_every_type() -> None:
    gm, _ = _graph()
    assert precision(gm, get_target("host"), "error") is gm


def test_inspect_for_a_target_without_float64_shows_a_program_without_it() -> None:
    with pytest.warns(PrecisionWarning):
        report = neuron_dynamo.inspect(lambda x: x.sin() * 2, torch.randn(3, dtype=torch.float64), options={"target": "trn2"})
    (graph,) = report.graphs
    assert "f64" not in graph.stablehlo and "sine" in graph.stablehlo


def test_layouts_of_outputs_of_a_narrowed_graph() -> None:
    """Its values have a fake mode of their own, besides the one that a compile runs under."""
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    with pytest.warns(PrecisionWarning):
        report = neuron_dynamo.inspect(
            lambda x: (x * 2).to(torch.float16, memory_format=torch.channels_last), x, options={"target": "trn2"}
        )
    (graph,) = report.graphs
    assert graph.host == 0 and "2x4x5x3xf16" in graph.stablehlo.replace(" ", "")


@pytest.mark.parametrize(
    "options", [{"target": "trn1"}, {"target": "inf2"}, {"target": "trn2", "compiler_args": "--native-int64 disabled"}], ids=str
)
def test_integers_of_which_the_compiler_keeps_32_bits(options: dict[str, str]) -> None:
    x = torch.tensor([2**40, -(2**50)])
    with pytest.warns(
        PrecisionWarning, match=r"ND111: target \w+ keeps the lower 32 bits of an integer: 3 values are int64\n  first: aten.mul"
    ):
        neuron_dynamo.inspect(lambda x: x * 3 + 1, x, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        neuron_dynamo.inspect(lambda x: x * 3 + 1, x, options={**options, "precision": "narrow"})
        neuron_dynamo.inspect(lambda x: x * 3 + 1, x.float(), options=options)
    with pytest.raises(PrecisionError, match=r"(?s)ND012.*lower 32 bits.*test_precision.py"):
        neuron_dynamo.inspect(lambda x: x * 3 + 1, x, options={**options, "precision": "error"})


def test_integers_are_kept_where_the_compiler_can() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionWarning)
        for arguments in ("", "--native-int64 disabled --native-int64=enabled"):
            options = {"target": "trn2", "precision": "error", "compiler_args": arguments}
            neuron_dynamo.inspect(lambda x: x * 3 + 1, torch.tensor([2**40]), options=options)
