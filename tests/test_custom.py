"""Custom ops: on the host as they are, native by a rule or a decomposition of the user's, and what wrong rules are told."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import neuron_dynamo
from neuron_dynamo import custom, report
from neuron_dynamo.errors import RuleError
from neuron_dynamo.lowering import registry
from neuron_dynamo.lowering.builder import Builder, Value

ROOT = Path(__file__).parents[1]
R = torch.randn


@torch.library.custom_op("custom_test::scaled", mutates_args=())
def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: float = 2.0) -> Tensor:
    return torch.empty_like(x)


def _scaled_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scaled.register_autograd(lambda ctx, grad: (scaled(grad, ctx.factor), None), setup_context=_scaled_setup)


@torch.library.custom_op("custom_test::parts", mutates_args=())
def parts(xs: Sequence[Tensor], at: int) -> tuple[Tensor, Tensor]:
    whole = torch.cat(list(xs))
    return whole[:at].clone(), whole[at:].clone()


@parts.register_fake
def _(xs: Sequence[Tensor], at: int) -> tuple[Tensor, Tensor]:
    length = sum(x.shape[0] for x in xs)
    return xs[0].new_empty(at, *xs[0].shape[1:]), xs[0].new_empty(length - at, *xs[0].shape[1:])


@torch.library.custom_op("custom_test::exchange", mutates_args=("x", "y"))
def exchange(x: Tensor, y: Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


@torch.library.custom_op("custom_test::accumulate", mutates_args=("total",))
def accumulate(total: Tensor, x: Tensor) -> Tensor:
    total.add_(x)
    return total * 2


@accumulate.register_fake
def _(total: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(total)


@torch.library.custom_op("custom_test::zero_all", mutates_args=("xs",))
def zero_all(xs: Sequence[Tensor]) -> None:
    for x in xs:
        x.zero_()


@zero_all.register_fake
def _(xs: Sequence[Tensor]) -> None:
    return None


@pytest.fixture(autouse=True)
def _no_rules_left() -> Iterator[None]:
    yield
    for op in (scaled, parts, accumulate, exchange, zero_all, torch.ops.aten.special_bessel_j0.default):
        custom.unregister(op)


def _run(function: Callable[..., Any], *args: Tensor, **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.compile(function, backend="neuron", fullgraph=True, **settings)(*args)


def _host() -> list[str]:
    return [op.name for graph in report.reports() for op in graph.ops if op.placement == "host"]


def _step(x: Tensor, y: Tensor) -> Tensor:
    return scaled(x.sin(), 3.0) + scaled(y)


def _train(function: Callable[..., Any], *args: Tensor) -> list[Tensor]:
    args = tuple(a.detach().clone().requires_grad_() for a in args)
    result = function(*args)
    return [result.detach(), *torch.autograd.grad(result.sum(), args)]


# On the host


def test_an_op_with_its_own_gradient_runs_on_the_host() -> None:
    args = R(3), R(3)
    torch.testing.assert_close(_train(lambda *a: _run(_step, *a), *args), _train(_step, *args))
    assert _host().count("custom_test.scaled.default") == 4


@pytest.mark.parametrize("dynamic", [False, True])
def test_lists_several_results_and_writes(dynamic: bool) -> None:
    def f(x: Tensor, y: Tensor, total: Tensor) -> Any:
        first, rest = parts([x.cos(), y], x.shape[0] - 1)
        doubled = accumulate(total, first.sum(0))
        doubled = doubled + accumulate(total[:1], rest[0, :1])
        zero_all([x, y])
        return first + 1, rest, doubled

    given = R(3, 2), R(4, 2), R(2)
    theirs, ours = [t.clone() for t in given], [t.clone() for t in given]
    torch.testing.assert_close(_run(f, *ours, dynamic=dynamic), f(*theirs))
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(ours[0], torch.zeros(3, 2)) and not torch.equal(ours[2], given[2])


# Rules


def _register_scaled(op: Any) -> None:
    @neuron_dynamo.register_lowering(op)
    def rule(b: Builder, x: Value, factor: float) -> Value:
        return b.mul(x, b.like(x, factor))


@pytest.mark.parametrize(
    "op", [scaled, torch.ops.custom_test.scaled, torch.ops.custom_test.scaled.default, "custom_test::scaled", "custom_test::scaled.default"]
)
def test_an_op_is_given_in_any_of_its_forms(op: Any) -> None:
    assert registry.find(torch.ops.custom_test.scaled.default) is None
    _register_scaled(op)
    assert registry.find(torch.ops.custom_test.scaled.default) is not None
    custom.unregister(op)
    assert registry.find(torch.ops.custom_test.scaled.default) is None


def test_a_rule_serves_the_backward_graph_too() -> None:
    _register_scaled(scaled)
    args = R(3), R(3)
    torch.testing.assert_close(_train(lambda *a: _run(_step, *a), *args), _train(_step, *args))
    assert _host() == [] and {graph.kind for graph in report.reports()} == {"forward", "backward"}


def test_a_rule_with_a_list_and_two_results() -> None:
    @neuron_dynamo.register_lowering("custom_test::parts")
    def rule(b: Builder, xs: Sequence[Value], at: int) -> tuple[Value, Value]:
        whole = b.concat(xs, 0)
        return b.slice_dim(whole, 0, 0, at), b.slice_dim(whole, 0, at, whole.shape[0])

    def f(x: Tensor, y: Tensor) -> Any:
        first, rest = parts([x, y, x], 2)
        return first * 2, rest

    args = R(3, 2), R(4, 2)
    torch.testing.assert_close(_run(f, *args), f(*args))
    assert _host() == []


def test_a_guard_sends_some_uses_to_the_host() -> None:
    def guard(x: Tensor, factor: float) -> str | None:
        return "factors above 2 are not for this device" if factor > 2 else None

    neuron_dynamo.register_lowering(scaled, guard=guard)(lambda b, x, factor: b.mul(x, b.like(x, factor)))
    args = R(3), R(3)
    torch.testing.assert_close(_run(_step, *args), _step(*args))
    assert [op.reason for graph in report.reports() for op in graph.ops if op.placement == "host"] == [
        "factors above 2 are not for this device"
    ]


def test_a_rule_works_within_control_flow() -> None:
    _register_scaled(scaled)

    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: scaled(x), lambda x: x.cos(), (x,))

    x = R(3).abs()
    torch.testing.assert_close(_run(f, x), x * 2)
    assert _host() == []


def test_a_rule_for_an_op_of_pytorch_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    op = torch.ops.aten.special_bessel_j0.default
    monkeypatch.delitem(registry.registered(), op, raising=False)
    neuron_dynamo.register_lowering(op)(lambda b, x: b.like(x, 7))
    assert torch.equal(_run(torch.special.bessel_j0, R(3)), torch.full((3,), 7.0))


# Decompositions


def test_a_decomposition_makes_the_op_native() -> None:
    @neuron_dynamo.register_decomposition(scaled)
    def by_pytorch(x: Tensor, factor: float = 2.0) -> Tensor:
        return torch.nn.functional.linear(x[..., None], x.new_full((1, 1), factor)).squeeze(-1)

    args = R(3), R(3)
    torch.testing.assert_close(_train(lambda *a: _run(_step, *a), *args), _train(_step, *args))
    assert _host() == []


def test_a_decomposition_may_write_as_the_op_does() -> None:
    @neuron_dynamo.register_decomposition(accumulate)
    def by_pytorch(total: Tensor, x: Tensor) -> Tensor:
        total += x
        return total * 2

    def f(total: Tensor, x: Tensor) -> Any:
        return accumulate(total, x) + accumulate(total[1:], x[1:]).sum()

    given = R(3), R(3)
    theirs, ours = [t.clone() for t in given], [t.clone() for t in given]
    torch.testing.assert_close(_run(f, *ours), f(*theirs))
    torch.testing.assert_close(ours, theirs)
    assert all(name == "aten.copy_.default" for name in _host())


WRITTEN: dict[str, Callable[[Tensor], Any]] = {
    "row": lambda x: (accumulate(x[0], x[1] * 2), x + 1),
    "column of a value": lambda x: (z := x * 2, accumulate(z[:, 1], x[:, 0])),
    "transposed value": lambda x: (z := x * 2, accumulate(z.t(), x.t())),
    "slice": lambda x: (accumulate(x[1:], x[:-1] * 2), x * 1),
    "rows apart": lambda x: (z := x * 2, exchange(z[0], z[2]), z + 1),
    "two values": lambda x: (z := x * 2, w := x * 3, exchange(z[0], w[2]), z + w),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_decomposition_may_write_into_views(name: str) -> None:
    @neuron_dynamo.register_decomposition(accumulate)
    def accumulated(total: Tensor, x: Tensor) -> Tensor:
        total += x
        return total * 2

    @neuron_dynamo.register_decomposition(exchange)
    def exchanged(x: Tensor, y: Tensor) -> None:
        before = x.clone()
        x.copy_(y)
        y.copy_(before)

    theirs, f = R(3, 4), WRITTEN[name]
    ours = theirs.clone()
    torch.testing.assert_close(_run(f, ours), f(theirs))
    torch.testing.assert_close(ours, theirs)
    assert all(name == "aten.copy_.default" for name in _host())


def test_a_decomposition_that_returns_its_argument_gives_a_new_tensor() -> None:
    neuron_dynamo.register_decomposition(scaled)(lambda x, factor=2.0: x.view(x.shape))
    x = R(3)
    result = _run(lambda x: scaled(x), x)
    assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()


# What is wrong


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (lambda b, x, factor: b.reshape(x, (1, 3)), "lowering rule made torch.float32 [1, 3] as result 0"),
        (lambda b, x, factor: b.convert(x, torch.int64), "lowering rule made torch.int64 [3] as result 0"),
        (lambda b, x, factor: (x, x), "lowering rule made 2 results instead of 1"),
        (lambda b, x, factor: factor, "lowering rule returned a float as result 0"),
        (lambda b, x, factor: None, "result 0 is used but was not lowered"),
        (lambda b, x, factor: b.no_such_op(x), "'Builder' object has no attribute 'no_such_op'"),
    ],
)
def test_a_wrong_rule_is_refused_by_name_and_line(rule: Any, what: str) -> None:
    neuron_dynamo.register_lowering(scaled)(rule)
    with pytest.raises(Exception, match="ND013") as caught:
        _run(_step, R(3), R(3))
    text = str(caught.value)
    assert what in text and "custom_test.scaled.default(float32[3])" in text
    assert re.search(r"lowering rule <lambda> \(.*test_custom\.py:\d+\)", text) and "return scaled(x.sin(), 3.0) + scaled(y)" in text


def test_a_wrong_decomposition_is_refused_by_name_and_line() -> None:
    neuron_dynamo.register_decomposition(scaled)(lambda x, factor=2.0: x.double() * factor)
    with pytest.raises(Exception, match="ND013") as caught:
        _run(_step, R(3), R(3))
    assert "result 0 is float64[3], PyTorch says float32[3]" in str(caught.value) and "_step" not in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("op", ["custom_test::nothing", "nothing", torch.add, 3, torch.ops.aten.lerp])
def test_what_is_no_single_op_is_refused(op: Any) -> None:
    with pytest.raises(RuleError, match="names no single op"):
        neuron_dynamo.register_lowering(op)


def test_rules_are_registered_once() -> None:
    _register_scaled(scaled)
    with pytest.raises(RuleError, match="already"):
        neuron_dynamo.register_decomposition(scaled)(lambda x, factor: x)
    with pytest.raises(RuleError, match="already"):
        neuron_dynamo.register_lowering(torch.ops.aten.add.Tensor)(lambda b, x, y, alpha: x)
    custom.unregister(scaled)
    _register_scaled(scaled)


def test_an_op_that_writes_takes_a_decomposition_only() -> None:
    with pytest.raises(RuleError, match="register_decomposition"):
        neuron_dynamo.register_lowering(accumulate)


def test_a_new_rule_is_used_though_caches_hold_the_old_program() -> None:
    op = scaled
    for factor in (5, 6):
        torch._dynamo.reset()
        neuron_dynamo.register_lowering(op)(lambda b, x, _, factor=factor: b.mul(x, b.like(x, factor)))
        assert torch.equal(_run(lambda x: scaled(x), torch.ones(3)), torch.full((3,), float(factor)))
        custom.unregister(op)


def test_the_example_in_the_docs_runs() -> None:
    text = (ROOT / "docs" / "custom_ops.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert "register_lowering" in code and "register_decomposition" in code and "assert" in code
    exec(compile(code, "docs/custom_ops.md", "exec"), {"__name__": "docs"})
