"""The importer: rules of ours and Torch-MLIR's own conversion in one function; results checked; what aborts Torch-MLIR kept from it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from neuron_dynamo.errors import LoweringError
from neuron_dynamo.lowering import registry, support
from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import check, run

aten = torch.ops.aten
HOST = get_target("host")


def _graph(fn: Any, *args: torch.Tensor) -> torch.fx.Graph:
    return make_fx(fn, tracing_mode="fake")(*args).graph


def test_torch_mlir_lowers_between_rules_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op without a rule goes through Torch-MLIR's pipelines; nothing but StableHLO is left of the casts around it."""
    registry.load()
    monkeypatch.delitem(registry._RULES, aten.tanh.default)
    args = [torch.randn(4, 8), torch.randn(16, 8), torch.randn(16)]
    program = lower(_graph(lambda x, w, b: (torch.tanh(x @ w.t()) + b,), *args), HOST)
    text = stablehlo_text(program.stablehlo)
    assert text.count("stablehlo.tanh") == 1 and "torch" not in text
    torch.testing.assert_close(run(program, args)[0], torch.tanh(args[0] @ args[1].t()) + args[2])


def test_an_op_that_is_neither_ruled_nor_proven_stays_away_from_torch_mlir(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load()
    monkeypatch.delitem(registry._RULES, aten.tanh.default)
    node = next(n for n in _graph(lambda x: (torch.tanh(x),), torch.randn(3)).nodes if n.op == "call_function")
    assert support.why_not_native(node, HOST) == "no native lowering"
    monkeypatch.setattr(support, "TORCH_MLIR_OPS", frozenset({aten.tanh.default}))
    assert support.why_not_native(node, HOST) is None
    scalar = next(n for n in _graph(lambda x: (torch.tanh(x),), torch.tensor(1.0)).nodes if n.op == "call_function")
    assert "may abort" in str(support.why_not_native(scalar, HOST))


def test_a_rule_with_a_wrong_result_is_an_error_at_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load()
    monkeypatch.setitem(registry._RULES, aten.tanh.default, registry.Entry(lambda b, x: b.reshape(x, (8, 4)), None))
    with pytest.raises(LoweringError, match=r"ND011(.*\n)*.*aten.tanh.default\(float32\[4, 8\]\)"):
        lower(_graph(lambda x: (torch.tanh(x),), torch.randn(4, 8)), HOST)


def test_sources_point_to_ops() -> None:
    program = lower(_graph(lambda x: (torch.tanh(x) * 2,), torch.randn(3)), HOST)
    assert [(row.op, row.fx_op) for row in program.sources if row.op == "stablehlo.tanh"] == [("stablehlo.tanh", "aten.tanh.default")]


ABORTING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "slice_scatter to the end of time": (lambda x, y: aten.slice_scatter(x, y, 1, 2, sys.maxsize), (torch.zeros(3, 8), torch.ones(3, 6))),
    "softmax of a scalar": (lambda x: torch.softmax(x, 0), (torch.tensor(2.0),)),
    "log_softmax of a scalar": (lambda x: torch.log_softmax(x, 0), (torch.tensor(2.0),)),
    "logsumexp of a scalar": (lambda x: torch.logsumexp(x, 0), (torch.tensor(2.0),)),
    "amax of a scalar": (lambda x: x.amax(), (torch.tensor(2.0),)),
    "clamp with a broadcast bound": (lambda x, y: torch.clamp_min(x, y), (torch.randn(3, 4), torch.randn(4))),
    "shift with a broadcast count": (lambda x, y: x << y, (torch.arange(6).reshape(2, 3), torch.tensor([1, 2, 3]))),
    "searchsorted of nothing": (lambda s, v: torch.searchsorted(s, v), (torch.arange(4.0), torch.empty(0))),
}


@pytest.mark.parametrize("name", ABORTING)
def test_inputs_that_abort_torch_mlir(name: str) -> None:
    fn, args = ABORTING[name]
    check(fn, *args)
