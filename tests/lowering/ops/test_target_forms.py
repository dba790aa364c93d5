"""Forms for targets that lack an op or a form of one, by value: lowered for trn2 and run by the host."""

from __future__ import annotations

import math

import pytest
import torch

from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
from neuron_dynamo.lowering.support import why_not_native
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import trace
from tests.lowering.targets import check_for, text_for

NAN, INF = math.nan, math.inf


def on_trn2(fn, *args, **tolerances):
    check_for("trn2", fn, *args, **tolerances)


def text_on_trn2(fn, *args):
    return text_for("trn2", fn, *args)


def odd_row(n: int = 23) -> torch.Tensor:
    """Rows with ties, both zeros, NaNs and infinities."""
    torch.manual_seed(n)
    x = torch.randint(-3, 4, (2, n)).float()
    x[:, ::5], x[:, 1::7], x[0, 2::9], x[1, 3::9] = -0.0, NAN, INF, -INF
    return x


# Order


def sorted_both_ways(x):
    return [torch.sort(x, dim=-1, descending=descending, stable=True) for descending in (False, True)]


@pytest.mark.parametrize("n", [1, 2, 23])
def test_sort_by_counting(n):
    text = text_on_trn2(sorted_both_ways, odd_row(n))
    assert "stablehlo.sort" not in text


@pytest.mark.parametrize("n", [3, 16, 23])
def test_sort_by_network(monkeypatch, n):
    monkeypatch.setattr("neuron_dynamo.lowering.ordering.LONGEST_COUNTED", 0)
    monkeypatch.setattr("neuron_dynamo.lowering.ordering.FEWEST_BY_MAXIMUM", 0)
    on_trn2(sorted_both_ways, odd_row(n))


def test_a_long_row_takes_the_network(monkeypatch):
    x = torch.randn(2000)
    program = lower(trace(lambda x: tuple(torch.sort(x, stable=True)), [x]).graph, get_target("trn2"))
    assert "2000x2000" not in stablehlo_text(program.stablehlo)
    monkeypatch.setattr("neuron_dynamo.lowering.ordering.LONGEST_COUNTED", 64)
    assert "100x100" not in text_on_trn2(lambda x: torch.sort(x, stable=True), x[:100])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.float16])
def test_sort_of_other_types(dtype):
    on_trn2(sorted_both_ways, torch.tensor([[3, 1, 0, 2, 1, 0, 3]]).to(dtype))


def test_sort_of_the_extremes_of_integers(monkeypatch):
    least, most = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max
    x = torch.tensor([most, 0, least, most, 5, least], dtype=torch.int32)
    for longest in (1024, 0):
        monkeypatch.setattr("neuron_dynamo.lowering.ordering.LONGEST_COUNTED", longest)
        on_trn2(lambda x: [torch.sort(x, stable=True), torch.sort(x, stable=True, descending=True)], x)


def test_sort_along_another_dim_of_nothing_and_of_a_number():
    on_trn2(lambda x: torch.sort(x, dim=0, stable=True), torch.randn(5, 2, 3))
    on_trn2(lambda x: torch.sort(x, dim=0, stable=True), torch.zeros(0, 3))
    on_trn2(lambda x: torch.sort(x), torch.tensor(2.0))


@pytest.mark.parametrize("counted", [1024, 0])
def test_topk(monkeypatch, counted):
    """By counting; else by taking maxima for few, by the network for more."""
    monkeypatch.setattr("neuron_dynamo.lowering.ordering.LONGEST_COUNTED", counted)
    torch.manual_seed(0)
    x = torch.randperm(40).float().view(2, 20)
    x[0, 5] = NAN
    on_trn2(lambda x: [torch.topk(x, k, dim=1, largest=largest) for k in (1, 3, 9) for largest in (False, True)], x)


def test_topk_where_values_run_out(monkeypatch):
    """Elements equal to what stands for those already taken."""
    monkeypatch.setattr("neuron_dynamo.lowering.ordering.LONGEST_COUNTED", 0)
    x = torch.tensor([[-INF, 1.0, -INF, NAN, -INF]])
    for k in (4, 5):
        text = text_on_trn2(lambda x, k=k: torch.topk(x, k).values, x)
        assert "stablehlo.sort" not in text
    on_trn2(lambda x: torch.sort(torch.topk(x, 5).indices).values, x)


def test_order_statistics():
    x = odd_row()
    clean = torch.nan_to_num(x, nan=9.0)
    on_trn2(lambda x: [torch.kthvalue(x, 4, dim=1).values, torch.median(x, dim=1).values, torch.mode(x, dim=1).values], clean)
    on_trn2(lambda x: [torch.nanmedian(x, dim=1).values, torch.nanmedian(x), torch.median(x)], x)
    on_trn2(lambda x, v: torch.searchsorted(x, v), torch.sort(clean).values, torch.randn(2, 5))


# Reductions


def test_logical_reductions():
    x = torch.tensor([[True, False, True], [True, True, True], [False, False, False]])
    text = text_on_trn2(lambda x: [x.any(), x.all(), x.any(dim=1), x.all(dim=0), x.amax(1), x.amin(0)], x)
    assert "stablehlo.or" not in text and "stablehlo.and" not in text
    on_trn2(lambda x: [x.any(dim=1), x.all(dim=1)], torch.zeros(2, 0, dtype=torch.bool))


def test_extremes_with_index():
    x = odd_row()
    on_trn2(lambda x: [x.max(dim=1).values, x.max(dim=1).indices, x.argmin(dim=1), x.argmax()], x)


@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_cumulative(n):
    x = torch.randn(3, n)
    on_trn2(lambda x: [x.cumsum(1), x.cumprod(1), x.logcumsumexp(1), x.cummax(1), x.cummin(1)], x)


def test_cumulative_odd_values():
    x = torch.tensor([1.0, INF, -INF, NAN, 2.0])
    whole, flags = torch.tensor([2**40, -3, 7]), torch.tensor([False, True, False])

    def fn(x, whole, flags):
        scans = [x.cumsum(0), x.cumprod(0), x.cummax(0), x.cummin(0)]
        return scans, whole.cumsum(0), whole.cummax(0), whole.cumprod(0), flags.cummax(0), flags.cumsum(0)

    on_trn2(fn, x, whole, flags)


# Windows


@pytest.mark.parametrize(
    "window",
    [{"kernel_size": 3}, {"kernel_size": 2, "stride": 1, "padding": 1, "dilation": 2}, {"kernel_size": (3, 2), "ceil_mode": True}],
)
def test_max_pool(window):
    x = torch.randn(2, 3, 9, 8)
    x[0, 0, 3, 3] = NAN
    x[0, 1] = 1
    pool = torch.nn.functional.max_pool2d
    on_trn2(lambda x: [pool(x, **window), pool(x, return_indices=True, **window)], x)


def test_adaptive_and_average_pools():
    x = torch.randn(2, 3, 9, 8)

    def fn(x):
        x = x.detach().requires_grad_(True)
        pooled = torch.nn.functional.avg_pool2d(x, 3, 2, 1)
        gradient = torch.autograd.grad(pooled.square().sum(), x)
        adaptive = torch.nn.functional.adaptive_max_pool2d(x, (4, 3), return_indices=True)
        return [adaptive, torch.nn.functional.adaptive_avg_pool2d(x, (4, 3)), pooled, gradient]

    on_trn2(fn, x)


# Convolutions


@pytest.mark.parametrize(("stride", "dilation", "groups"), [(2, 1, 1), (2, 2, 1), (3, 2, 2), (1, 3, 1)])
def test_transposed_convolution(stride, dilation, groups):
    x, w = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 2, 3)
    on_trn2(
        lambda x, w: torch.nn.functional.conv_transpose2d(x, w, stride=stride, dilation=dilation, groups=groups), x, w, rtol=1e-4, atol=1e-5
    )


def test_convolution_gradients():
    def gradients(x, w):
        x, w = x.detach().requires_grad_(True), w.detach().requires_grad_(True)
        return torch.autograd.grad(torch.nn.functional.conv2d(x, w, stride=2, dilation=2, padding=1).square().sum(), (x, w))

    on_trn2(gradients, torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 2), rtol=1e-4, atol=1e-4)


# Integers


def test_right_shift():
    x, n = torch.tensor([-128, -1, 0, 1, 127, -7]), torch.tensor([7, 3, 2, 1, 6, 0])
    pairs = [(x.to(dtype), n.to(dtype)) for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)]
    on_trn2(lambda *pairs: [torch.bitwise_right_shift(x, n) for x, n in pairs], *pairs)


def test_integer_power_without_loops():
    x = torch.tensor([-3, -1, 0, 1, 2, 3, 5, 7])
    exponents, few = torch.tensor([3, 5, 0, 9, 62, 40, 2, 1]), torch.tensor([0, 1, 2, 19])
    on_trn2(lambda x, y, n, few: [torch.pow(x, n), torch.pow(y, 9), torch.pow(3, few)], x, x.to(torch.int32), exponents, few)


def test_scatters_of_booleans():
    x, index = torch.tensor([False, True, False, True]), torch.tensor([0, 1, 0])
    updates = torch.tensor([False, False, True]), torch.tensor([True, False, False])
    on_trn2(lambda x, i, u, v: [x.index_add(0, i, u), x.index_put((i,), v, accumulate=True)], x, index, *updates)


def test_float64_is_float32():
    on_trn2(lambda x: [x.sum(), x.softmax(1)], torch.randn(3, 4, dtype=torch.float64))


def test_loops_of_bounded_length_are_written_out():
    x, y = torch.tensor([12, -18, 0, 7, 6765]), torch.tensor([18, 12, 5, 0, 10946])
    on_trn2(lambda x, y: [torch.gcd(x, y), torch.lcm(x, y)], x.short(), y.short())
    boundaries = torch.arange(50).float()
    on_trn2(lambda n, v: [torch.searchsorted(n, v), torch.bucketize(v, n, right=True)], boundaries, torch.tensor([-1.0, 0, 7.5, 49, 90]))


@pytest.mark.parametrize(
    ("op", "args", "reason"),
    [
        (torch.igamma, (torch.ones(2), torch.ones(2)), "takes no loops"),
        (torch.special.zeta, (torch.full((2,), 2.0), torch.ones(2)), "takes no loops"),
        (torch.special.hermite_polynomial_h, (torch.ones(2), torch.ones(2)), "takes no loops"),
        (torch.sort, (torch.empty(2**20 + 1),), "has no sort"),
        (torch.add, (torch.ones(2, dtype=torch.complex64), 1), "has no torch.complex64"),
    ],
)
def test_what_runs_on_the_host(op, args, reason):
    gm = trace(lambda *tensors: op(*tensors, *args[len(tensors) :]), [a for a in args if isinstance(a, torch.Tensor)])
    reasons = [why for n in gm.graph.nodes if n.op == "call_function" and (why := why_not_native(n, get_target("trn2")))]
    assert reason in reasons[0]
    assert all(why_not_native(n, get_target("host")) is None for n in gm.graph.nodes if n.op == "call_function")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integer_sums_are_exact(dtype):
    """A scatter-add in float32 would lose what is beyond 2^24; sums that overflow wrap."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([1, 0, most, least], dtype=dtype)
    index, updates = torch.tensor([0, 2, 0, 3, 0, 1]), torch.tensor([most, 1, most - 1, least, 7, most // 3], dtype=dtype)
    text = text_on_trn2(lambda x, i, v: [x.index_add(0, i, v), x.scatter_add(0, i, v)], x, index, updates)
    assert not [f for f in text.splitlines() if "stablehlo.scatter" in f and "xi" in f.partition("->")[2]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integer_products_are_exact(dtype):
    most = torch.iinfo(dtype).max
    x, y = (torch.arange(24).view(2, 3, 4) * (most // 50)).to(dtype), torch.arange(40).view(2, 4, 5).to(dtype)
    text = text_on_trn2(lambda x, y: [x @ y, x[0] @ y[0], x[0, 0] @ y[0]], x, y)
    assert "dot_general" not in text


def test_many_integer_terms_are_scattered_as_they_are():
    index = torch.zeros(2**16 + 1, dtype=torch.int64)
    text = text_on_trn2(lambda i: torch.zeros(3, dtype=torch.int64).index_add(0, i, torch.ones_like(i)), index)
    assert text.count("stablehlo.scatter") == 2  # the op and its dimension numbers
