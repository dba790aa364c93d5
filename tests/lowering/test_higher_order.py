"""Higher-order ops through torch.compile: values and gradients against plain PyTorch, and native but where said otherwise."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as map_rows
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import dropout
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from neuron_dynamo import inspect, report
from neuron_dynamo.runtime.encoding import encode_target

Function = Callable[..., Any]
R = torch.randn


def _run(function: Function, args: Sequence[Any], grad: bool) -> list[Tensor | None]:
    """Results, then gradients of the floating-point arguments."""
    args = [a.detach().clone().requires_grad_(grad and a.is_floating_point()) if isinstance(a, Tensor) else a for a in args]
    results = [r for r in pytree.tree_leaves(function(*args)) if isinstance(r, Tensor)]
    roots = [r for r in results if r.requires_grad]
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    gradients = torch.autograd.grad(roots, leaves, [torch.cos(r.detach()) for r in roots], allow_unused=True) if roots else ()
    return [*(r.detach() for r in results), *gradients]


def _check(
    function: Function, *args: Any, reference: Function | None = None, grad: bool = True, dynamic: bool | None = None, **options: str
) -> list[str]:
    """Compare with eager, or with a reference in plain PyTorch; returns why ops ran on the host."""
    expected = _run(reference or function, args, grad)
    torch._dynamo.reset()
    report.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=dynamic, options=options or None)
        actual = _run(compiled, args, grad)
    torch.testing.assert_close(actual, expected)
    return sorted({f"{op.name}: {op.reason}" for graph in report.reports() for op in graph.ops if op.placement == "host"})


def _text() -> str:
    return "".join(program.stablehlo for graph in report.reports() for program in graph.programs)


@pytest.fixture(autouse=True)
def _numbers_in_graphs() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield


# cond


@pytest.mark.parametrize("which", [True, False])
def test_cond_runs_one_branch_forward_and_backward(which: bool) -> None:
    def f(p: Tensor, x: Tensor, y: Tensor) -> Any:
        return torch.cond(p, lambda x, y: (x.sin() * y, x.sum()), lambda x, y: (x.exp(), y.sum()), (x, y))

    assert _check(f, torch.tensor(which), R(3, 4), R(3, 4)) == []
    assert "stablehlo.if" in _text()


def test_nested_cond_with_a_captured_tensor() -> None:
    w = R(4, 4)

    def f(x: Tensor, y: Tensor) -> Any:
        def outer(x: Tensor) -> Any:
            return torch.cond(x.mean() > 1, lambda x: x @ w, lambda x: x.cos() @ w, (x,))

        return torch.cond(x.sum() > 0, outer, lambda x: x - y, (x,))

    for x in (R(4, 4).abs(), R(4, 4).abs() + 2, -R(4, 4).abs()):
        assert _check(f, x, R(4, 4)) == []


def test_branch_with_an_op_that_only_the_host_has() -> None:
    @torch.library.custom_op("higher_order_test::sinc", mutates_args=())
    def sinc(x: Tensor) -> Tensor:
        return torch.sinc(x)

    @sinc.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: sinc(x) + 1, lambda x: x * 2, (x,)) * 3

    for x in (R(3).abs(), -R(3).abs()):
        (reason,) = {r for r in _check(f, x, grad=False) if r.startswith("cond")}
        assert reason == "cond: its sub-graph holds higher_order_test.sinc.default: no native lowering"


def test_a_graph_that_holds_sub_graphs_for_the_host_is_not_stored() -> None:
    for target in (torch.ops.higher_order.cond, operator.attrgetter("true_graph_0")):
        with pytest.raises(ValueError, match="cannot be stored"):
            encode_target(target)


# Loops


def test_while_loop_over_tensors() -> None:
    def f(i: Tensor, x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + i), (i, x))

    assert _check(f, torch.tensor(0), R(3), grad=False) == []
    assert _check(f, torch.tensor(9), R(3), grad=False) == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_while_loop_that_counts_with_integers(dynamic: bool) -> None:
    def f(x: Tensor, n: Tensor) -> Any:
        def more(i: int, j: int, x: Tensor) -> Any:
            return (i < n) & (x.sum() < 1000)

        i, j, x = while_loop(more, lambda i, j, x: (i + 1, j * 2, x * 1.5 + i * j), (0, x.shape[0] - 3, x))
        return x * j, (x > 0).sum() + i

    hosts = _check(f, R(8), torch.tensor(6), grad=False, dynamic=dynamic)
    assert not [reason for reason in hosts if reason.startswith("while_loop")] and "stablehlo.while" in _text()


def test_while_loop_that_uses_an_integer_as_only_the_host_can() -> None:
    def f(x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + x[i]), (0, x))[1]

    assert [reason for reason in _check(f, R(8), grad=False) if reason.startswith("while_loop: what it makes")]


def test_integers_do_not_widen_what_they_are_added_to() -> None:
    def f(x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 40, lambda i, x: (i + 1, x + i), (0, x))[1]

    _check(f, torch.tensor(3, dtype=torch.int8), grad=False)


def test_gradient_of_a_while_loop() -> None:
    def f(i: Tensor, x: Tensor) -> Any:
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, (x * 1.5).sin()), (i, x))

    def unrolled(i: Tensor, x: Tensor) -> Any:
        for _ in range(4):
            x = (x * 1.5).sin()
        return i + 4, x

    _check(f, torch.tensor(0), R(3), reference=unrolled)


@pytest.mark.parametrize("dynamic", [False, True])
def test_scan_forward_and_backward(dynamic: bool) -> None:
    w = R(4, 4)

    def f(start: Tensor, xs: Tensor) -> Any:
        return scan(lambda c, x: ((c @ w + x).tanh(), (c * x).sin()), start, xs)

    def unrolled(c: Tensor, xs: Tensor) -> Any:
        rows = []
        for x in xs:
            rows.append((c * x).sin())
            c = (c @ w + x).tanh()
        return c, torch.stack(rows)

    assert _check(f, R(2, 4), R(6, 2, 4), reference=unrolled, dynamic=dynamic) == []
    assert "stablehlo.while" in _text()


def test_scan_from_the_end_of_another_dim() -> None:
    def f(start: Tensor, xs: Tensor) -> Any:
        return scan(lambda c, x: (c + x.sin(), c * x), start, xs, dim=1, reverse=True)

    def unrolled(c: Tensor, xs: Tensor) -> Any:
        rows = []
        for x in reversed(xs.unbind(1)):
            rows.append(c * x)
            c = c + x.sin()
        return c, torch.stack(rows[::-1], 1)

    assert _check(f, R(2), R(2, 5), reference=unrolled) == []


def test_dropout_in_a_scan_has_one_mask_a_step_and_the_same_backward() -> None:
    def f(start: Tensor, xs: Tensor) -> Any:
        return scan(lambda c, x: (c + dropout(x, 0.5), c.clone()), start, xs)

    xs = torch.ones(6, 200, requires_grad=True)
    with pytest.warns(match="ND110"):
        total, _ = torch.compile(f, backend="neuron", fullgraph=True)(torch.zeros(200, requires_grad=True), xs)
    total.sum().backward()
    assert xs.grad is not None and torch.equal(xs.grad.sum(0), total)
    assert set(xs.grad.unique().tolist()) == {0.0, 2.0} and not torch.equal(xs.grad[0], xs.grad[1])


@pytest.mark.parametrize("dynamic", [False, True])
def test_map_forward_and_backward(dynamic: bool) -> None:
    def f(xs: Tensor, y: Tensor) -> Any:
        return map_rows(lambda x, y: (x.cos() * y).cumsum(0), xs, y)

    def unrolled(xs: Tensor, y: Tensor) -> Any:
        return torch.stack([(x.cos() * y).cumsum(0) for x in xs])

    assert _check(f, R(5, 3), R(3), reference=unrolled, dynamic=dynamic) == []


def test_map_to_other_types() -> None:
    def f(xs: Tensor) -> Any:
        return map_rows(lambda x: (x > 0, x.to(torch.int64) * 3), xs)

    assert _check(f, R(5, 3) * 4, reference=lambda xs: (xs > 0, xs.to(torch.int64) * 3), grad=False) == []


def test_map_within_map() -> None:
    def f(xs: Tensor) -> Any:
        return map_rows(lambda x: map_rows(lambda row: row.sin().add_(1).view(row.shape) * row.sum(), x), xs)

    assert _check(f, R(3, 2, 4), reference=lambda xs: (xs.sin() + 1) * xs.sum(2, keepdim=True)) == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_associative_scan(dynamic: bool) -> None:
    def pointwise(xs: Tensor) -> Any:
        return torch.ops.higher_order.associative_scan(lambda a, b: [a * b], [xs], ())

    # PyTorch takes no gradients where the combination knows of sizes, as it does of symbolic ones.
    assert _check(pointwise, R(7, 3), reference=lambda xs: xs.cumprod(0), grad=not dynamic, dynamic=dynamic) == []


def test_associative_scan_of_matrices() -> None:
    def f(xs: Tensor) -> Any:
        return associative_scan(lambda a, b: a @ b, xs, 0, combine_mode="generic")

    def unrolled(xs: Tensor) -> Tensor:
        return torch.stack([functools.reduce(torch.matmul, xs[: n + 1]) for n in range(4)])

    assert _check(f, R(4, 2, 2), reference=unrolled) == []


def test_targets_without_loops_and_conditionals() -> None:
    def f(p: Tensor, x: Tensor, xs: Tensor) -> Any:
        chosen = torch.cond(p, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return chosen, scan(lambda c, x: (c + x, c * x), x, xs), map_rows(lambda x: x.exp(), xs)

    report = inspect(f, torch.tensor(True), R(3), R(4, 3), options={"target": "trn1"})
    ops = [op for graph in report.graphs for op in graph.ops]
    text = "".join(program.stablehlo for graph in report.graphs for program in graph.programs)
    assert {op.placement for op in ops} == {"native"}
    assert "stablehlo.while" not in text and "stablehlo.if" not in text and text.count("stablehlo.exponential") == 4


def test_a_long_loop_on_a_target_without_loops_names_the_reason() -> None:
    report = inspect(lambda xs: map_rows(lambda x: x.exp(), xs), R(2000, 3), options={"target": "trn1"})
    (reason,) = {op.reason for graph in report.graphs for op in graph.ops if op.name == "map_impl"}
    assert reason == "target trn1 takes no `while`, and 2000 steps are too many to write out"


def test_a_product_of_another_type() -> None:
    a, b = (torch.randint(-100, 100, (8, 8), dtype=torch.int8) for _ in range(2))

    def f(a: Tensor, b: Tensor) -> Any:
        return torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, a, b)

    assert _check(f, a, b, reference=lambda a, b: a.int() @ b.int()) == []


# flex_attention


@pytest.fixture
def _flex_trains_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's front end refuses gradients for CPU tensors, whatever the backend; the op beneath it does not."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda query, key, value: None)


def _attention(q: Tensor, k: Tensor, v: Tensor, scores: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Plain attention with `scores` applied, and its logsumexp; rows that are masked throughout give zeros."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    s = scores(q.float() @ k.float().transpose(-1, -2) / q.shape[-1] ** 0.5)
    weights = torch.softmax(s, -1).masked_fill((s == -torch.inf).all(-1, keepdim=True), 0)
    return (weights.to(v.dtype) @ v), s.logsumexp(-1)


@pytest.mark.usefixtures("_flex_trains_on_cpu")
def test_flex_attention_with_groups_bias_mask_and_logsumexp() -> None:
    causal = create_block_mask(lambda b, h, m, n: m >= n, None, None, 32, 32, device="cpu", BLOCK_SIZE=16)
    upper = torch.ones(32, 32, dtype=torch.bool).triu(1)

    def f(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
        def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
            return torch.tanh(s * 0.5 + bias[h, m, n]) * 2

        return flex_attention(q, k, v, score_mod=score, block_mask=causal, enable_gqa=True, return_lse=True)

    def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
        return _attention(q, k, v, lambda s: (torch.tanh(s * 0.5 + bias) * 2).masked_fill(upper, -torch.inf))

    assert _check(f, R(2, 4, 32, 8), R(2, 2, 32, 8), R(2, 2, 32, 8), R(4, 32, 32), reference=plain) == []


@pytest.mark.usefixtures("_flex_trains_on_cpu")
@pytest.mark.parametrize("dynamic", [False, True])
def test_flex_attention_with_rows_that_see_nothing(dynamic: bool) -> None:
    seen = torch.ones(16, 24, dtype=torch.bool).tril(-1)
    seen[:6] = False
    mask = create_block_mask(lambda b, h, m, n: (m > 5) & (n < m), None, None, 16, 24, device="cpu", BLOCK_SIZE=8)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=mask)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return _attention(q, k, v, lambda s: s.masked_fill(~seen, -torch.inf))[0].nan_to_num(0)

    args = [R(1, 2, 16, 8), R(1, 2, 24, 8), R(1, 2, 24, 8)]
    assert _check(f, *args, reference=plain, grad=False, dynamic=dynamic) == []
    assert torch.equal(torch.compile(f, backend="neuron")(*args)[:, :, :6], torch.zeros(1, 2, 6, 8))


@pytest.mark.usefixtures("_flex_trains_on_cpu")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_flex_attention_in_other_types_and_strides(dtype: torch.dtype) -> None:
    q, k, v = (R(2, 12, 3, 8).to(dtype).transpose(1, 2) for _ in range(3))
    assert _check(lambda q, k, v: flex_attention(q, k, v, scale=0.3), q, k, v) == []


@pytest.mark.usefixtures("_flex_trains_on_cpu")
def test_flex_attention_over_documents() -> None:
    document = torch.tensor([0] * 5 + [1] * 7 + [2] * 4)

    def f(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Any:
        def same(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
            return (document[m] == document[n]) & (m >= n)

        return flex_attention(q, k, v, block_mask=create_block_mask(same, None, None, 16, 16, device="cpu", BLOCK_SIZE=8))

    def plain(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Any:
        seen = (document[:, None] == document) & torch.ones(16, 16, dtype=torch.bool).tril()
        return _attention(q, k, v, lambda s: s.masked_fill(~seen, -torch.inf))[0]

    assert _check(f, R(1, 2, 16, 8), R(1, 2, 16, 8), R(1, 2, 16, 8), document, reference=plain) == []


# Autograd


class _Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.clamp(-1, 1), x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor, other: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 3 * x + other * ctx.factor, None


def test_autograd_function_with_a_gradient_of_its_own() -> None:
    assert _check(lambda x: _Clamped.apply(x.sin(), 5), R(4)) == []


def test_checkpoint_recomputes() -> None:
    layer = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).requires_grad_(False)

    def f(x: Tensor) -> Any:
        return checkpoint(layer, checkpoint(layer, x, use_reentrant=False), use_reentrant=False)

    assert _check(f, R(3, 4)) == []
    backward = next(graph for graph in report.reports() if graph.kind == "backward")
    assert sum(op.name in ("aten.mm.default", "aten.addmm.default") for op in backward.ops) >= 6  # 4 gradients, 2 or more again


def test_selective_checkpoint_saves_what_its_policy_says() -> None:
    w = R(4, 4)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def f(x: Tensor) -> Any:
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(lambda x: ((x @ w).sin().exp() @ w).cos(), x, use_reentrant=False, context_fn=contexts)

    assert _check(f, R(3, 4)) == []
    backward = next(graph for graph in report.reports() if graph.kind == "backward")
    names = [op.name for op in backward.ops]
    assert names.count("aten.mm.default") == 2 and "aten.exp.default" in names


@pytest.mark.parametrize("rng", ["graph", "eager"])
def test_checkpoint_recomputes_with_the_same_mask(rng: str) -> None:
    def f(x: Tensor) -> Any:
        return checkpoint(lambda x: (dropout(x * 1.0, 0.5) * 0.5).sin(), x, use_reentrant=False)

    x = torch.ones(1000, requires_grad=True)
    result = torch.compile(f, backend="neuron", fullgraph=True, options={"rng": rng})(x)
    result.sum().backward()
    assert x.grad is not None and torch.equal(result == 0, x.grad == 0) and 400 < int((result == 0).sum()) < 600


def test_dropout_in_a_nested_region_has_one_mask_a_call() -> None:
    @torch.compiler.nested_compile_region
    def region(x: Tensor) -> Tensor:
        return dropout(x * 1.0, 0.5)

    x = torch.ones(1000, requires_grad=True)
    first, second = torch.compile(lambda x: (region(x), region(x)), backend="neuron", fullgraph=True)(x)
    (first + second).sum().backward()
    assert x.grad is not None and torch.equal(first + second, x.grad) and not torch.equal(first, second)


def test_nested_regions_of_modules() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4).requires_grad_(False)

        @torch.compiler.nested_compile_region
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).relu() + x

    assert _check(nn.Sequential(Block(), Block(), Block()), R(5, 4)) == []
