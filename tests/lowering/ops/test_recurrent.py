"""One LSTM layer, forward and backward: against oneDNN where this CPU has it, and against float64 nn.LSTM everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
from neuron_dynamo.passes.decompositions import decomposition_table
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import check, run, trace

aten = torch.ops.aten
HIDDEN = 6


def _layer(steps: int = 5, bias: bool = True, seed: int = 0) -> tuple[nn.LSTM, list[Tensor]]:
    """A float64 reference layer, and (x, w_ih, w_hh, b_ih, b_hh, h, c) of it as the op takes them, in float64."""
    torch.manual_seed(seed)
    reference = nn.LSTM(4, HIDDEN, bias=bias).double()
    weights = [p.detach() for p in reference.parameters()]
    if not bias:
        weights += [torch.zeros_like(w) for w in weights]
    x, h, c = (torch.randn(n, 3, w, dtype=torch.float64) for n, w in ((steps, 4), (1, HIDDEN), (1, HIDDEN)))
    return reference, [x, *weights, h, c]


def _forward(reverse: bool = False, bias: bool = True, batch_first: bool = False) -> Any:
    def fn(x: Tensor, *rest: Tensor) -> Any:
        return aten.mkldnn_rnn_layer.default(x, *rest, reverse, [], 2, HIDDEN, 1, bias, False, batch_first, False)[:3]

    return fn


def _expected(reference: nn.LSTM, x: Tensor, h: Tensor, c: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    output, (h_end, c_end) = reference(x.flip(0) if reverse else x, (h, c))
    return output.flip(0) if reverse else output, h_end, c_end


def _run(fn: Any, tensors: list[Tensor]) -> list[Tensor]:
    return run(lower(trace(lambda *given: tuple(fn(*given)), tensors).graph, get_target("host")), tensors)


@pytest.mark.parametrize(("reverse", "bias", "steps"), [(False, True, 5), (True, True, 5), (True, False, 5), (False, False, 1)])
def test_forward_as_onednn(reverse: bool, bias: bool, steps: int) -> None:
    _, tensors = _layer(steps, bias)
    check(_forward(reverse, bias), *[t.float() for t in tensors])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
def test_forward_against_float64(dtype: torch.dtype, tolerance: float, reverse: bool) -> None:
    reference, tensors = _layer(40)
    tensors = [t.to(dtype) for t in tensors]
    with torch.no_grad():
        for parameter, rounded in zip(reference.parameters(), tensors[1:5], strict=True):
            parameter.copy_(rounded)
        expected = _expected(reference, *(tensors[i].double() for i in (0, 5, 6)), reverse)
    for actual, wanted in zip(_run(_forward(reverse), tensors), expected, strict=True):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=tolerance)


def test_batch_first() -> None:
    _, (x, *rest) = _layer()
    tensors = [t.float() for t in (x, *rest)]
    output, *ends = _run(_forward(), tensors)
    turned, *turned_ends = _run(_forward(batch_first=True), [tensors[0].transpose(0, 1).contiguous(), *tensors[1:]])
    torch.testing.assert_close([turned.transpose(0, 1), *turned_ends], [output, *ends], rtol=0, atol=0)


def test_program_does_not_grow_with_the_sequence() -> None:
    def lines(steps: int) -> int:
        graph = trace(_forward(), [t.float() for t in _layer(steps)[1]]).graph
        return stablehlo_text(lower(graph, get_target("host")).stablehlo).count("\n")

    assert lines(200) == lines(2)


def test_written_out_for_neuron() -> None:
    graph = trace(_forward(), [t.float() for t in _layer(3)[1]]).graph
    text = stablehlo_text(lower(graph, get_target("trn2")).stablehlo)
    assert "stablehlo.while" not in text
    assert text.count("stablehlo.tanh") == 2 * 3


@pytest.mark.parametrize(
    ("reverse", "steps", "bias", "given"),
    [
        (False, 5, True, (True, True, True)),
        (True, 5, True, (True, False, False)),
        (True, 5, False, (False, True, False)),
        (False, 5, False, (False, False, True)),
        (False, 1, True, (True, True, True)),
    ],
)
def test_backward_against_autograd(reverse: bool, steps: int, bias: bool, given: tuple[bool, bool, bool]) -> None:
    """`given` tells which of the three results have gradients."""
    reference, tensors = _layer(steps, bias)
    x, h, c = (tensors[i].requires_grad_() for i in (0, 5, 6))
    results = _expected(reference, x, h, c, reverse)
    upstream = [torch.randn_like(r) if has else None for r, has in zip(results, given, strict=True)]
    some = [(r, g) for r, g in zip(results, upstream, strict=True) if g is not None]
    wanted = torch.autograd.grad([r for r, _ in some], [x, *reference.parameters(), h, c], [g for _, g in some])

    present = [g.float() for g in upstream if g is not None]
    workspace = torch.empty(0, dtype=torch.uint8)

    def fn(*args: Tensor) -> Any:
        saved, grads = args[:10], iter(args[10:])
        optional = [next(grads) if has else None for has in given]
        results = aten.mkldnn_rnn_layer_backward.default(
            *saved, *optional, reverse, 2, HIDDEN, 1, bias, False, False, [], False, workspace.new_empty(0)
        )
        return results if bias else [*results[:3], *results[5:]]

    saved = [t.detach().float() for t in (*tensors, *results)]
    for actual, expected in zip(_run(fn, [*saved, *present]), wanted, strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=2e-6)


def test_backward_in_bfloat16() -> None:
    """As near to float64 as eight bits of mantissa let the gradient of each step be."""
    reference, tensors = _layer(12)
    tensors = [t.bfloat16() for t in tensors]
    with torch.no_grad():
        for parameter, rounded in zip(reference.parameters(), tensors[1:5], strict=True):
            parameter.copy_(rounded)
    x, h, c = (tensors[i].double().requires_grad_() for i in (0, 5, 6))
    results = _expected(reference, x, h, c, False)
    wanted = torch.autograd.grad(results[0].sum(), [x, *reference.parameters(), h, c])

    def fn(*args: Tensor) -> Any:
        return aten.mkldnn_rnn_layer_backward.default(
            *args, None, None, False, 2, HIDDEN, 1, True, False, False, [], False, args[0].new_empty(0, dtype=torch.uint8)
        )

    saved = [*tensors, *(r.detach().bfloat16() for r in results), torch.ones_like(results[0]).bfloat16()]
    for actual, expected in zip(_run(fn, saved), wanted, strict=True):
        assert float((actual.double() - expected).norm() / expected.norm()) < 1e-2


def test_one_op_a_layer_in_the_table() -> None:
    assert aten.mkldnn_rnn_layer.default not in decomposition_table()
