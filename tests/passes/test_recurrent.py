"""Training through nn.LSTM, nn.GRU and nn.RNN: eager's dropout between layers, and LSTM as one op a layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuron_dynamo.passes.recurrent import open_recurrent

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _recurrent_modules_in_graphs() -> Any:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def _train(call: Any, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Results, gradients and the next random number, from a fixed seed."""
    torch.manual_seed(0)
    module.zero_grad()
    x = x.detach().requires_grad_(x.requires_grad)
    output, ends = call(x)
    ends = ends if isinstance(ends, tuple) else (ends,)
    (output.square().sum() + sum((n + 1) * end.sin().sum() for n, end in enumerate(ends))).backward()
    gradients = [p.grad for p in module.parameters()] + [x.grad]
    return [output, *ends, *(g for g in gradients if g is not None), torch.rand(3)]


@pytest.mark.parametrize(
    ("kind", "settings", "gradient"),
    [
        (nn.LSTM, {"bidirectional": True, "batch_first": True, "dropout": 0.5}, True),
        (nn.LSTM, {"bias": False}, False),
        (nn.LSTM, {"proj_size": 3, "dropout": 0.5}, True),
        (nn.GRU, {"batch_first": True, "dropout": 0.5}, True),
        (nn.RNN, {"bidirectional": True, "dropout": 0.5, "nonlinearity": "relu"}, False),
    ],
)
def test_training_as_eager(kind: Any, settings: dict[str, Any], gradient: bool) -> None:
    """`gradient` tells whether the input has one."""
    torch.manual_seed(1)
    module = kind(4, 6, num_layers=2, **settings)
    x = torch.randn(3, 3, 4, requires_grad=gradient)
    expected = _train(module, module, x)
    actual = _train(torch.compile(module, backend="neuron", options={"rng": "eager"}, fullgraph=True), module, x)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def _opened(module: nn.Module, *args: Any) -> list[Any]:
    """Targets in Dynamo's graph after the pass."""
    targets: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        open_recurrent(gm)
        targets.extend(node.target for node in gm.graph.nodes if node.op == "call_function")
        return gm.forward

    torch.compile(module, backend=backend)(*args)
    return targets


def test_lstm_that_trains_is_one_op_a_layer_and_direction() -> None:
    targets = _opened(nn.LSTM(4, 6, num_layers=2, bidirectional=True), torch.randn(5, 3, 4, requires_grad=True))
    assert targets.count(aten.mkldnn_rnn_layer.default) == 4
    assert torch.lstm not in targets


@pytest.mark.parametrize("module", [nn.LSTM(4, 6, 2, proj_size=3), nn.LSTM(4, 6, 2).double(), nn.GRU(4, 6, 2), nn.RNN(4, 6, 1)])
def test_what_pytorch_traces_right_stays(module: nn.Module) -> None:
    x = torch.randn(5, 3, 4, dtype=next(module.parameters()).dtype)
    targets = _opened(module, x)
    assert sum(t in (torch.lstm, torch.gru, torch.rnn_tanh) for t in targets) == 1
    assert torch.narrow not in targets


def test_lstm_under_autocast_keeps_eagers_dtypes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.lstm(x)[0]

    x = torch.randn(5, 3, 4, requires_grad=True)
    with torch.backends.mkldnn.flags(enabled=False):  # the graph runs in eager, where oneDNN has no bf16 LSTM on every CPU
        assert torch.lstm in _opened(Model(), x)
        torch._dynamo.reset()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.lstm in _opened(nn.LSTM(4, 6), x)


def test_dynamic_shapes_and_dropout() -> None:
    """With dynamic=True Dynamo makes the dropout an input; another value must not run the first one's program."""
    torch.manual_seed(1)
    module = nn.LSTM(4, 6, num_layers=2, dropout=0.5)
    compiled = torch.compile(module, backend="neuron", dynamic=True, options={"rng": "eager"})
    for steps, batch, dropout in ((3, 2, 0.5), (4, 3, 0.5), (4, 3, 0.9)):
        module.dropout = dropout
        x = torch.randn(steps, batch, 4, requires_grad=True)
        expected = _train(module, module, x)
        torch.testing.assert_close(_train(compiled, module, x), expected, rtol=1e-5, atol=1e-5)
