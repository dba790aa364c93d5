"""Random ops through the backend: bits of eager PyTorch under rng="eager"; one state for forward and backward under rng="graph"."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from neuron_dynamo.backend import neuron

MODES = ("graph", "eager")
ROOT = Path(__file__).parents[2]


def compiled(fn: Callable[..., Any], mode: str) -> Any:
    return torch.compile(fn, backend=neuron, options={"rng": mode, "fallback": "error", "cache": "off"}, fullgraph=True)


def seeded(fn: Callable[..., Any], *args: Any, seed: int = 1) -> tuple[Any, torch.Tensor]:
    """fn's result after a fresh seed, and the generator's state after it."""
    torch.manual_seed(seed)
    result = fn(*[a.clone() for a in args])
    return result, torch.get_rng_state()


def trained(fn: Callable[..., Any], x: torch.Tensor, seed: int = 1) -> tuple[torch.Tensor, ...]:
    """Output and gradient of fn at x, and the generator's state after forward and after backward."""
    torch.manual_seed(seed)
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = fn(x)
    between = torch.get_rng_state()
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    return y.detach(), x.grad, between, torch.get_rng_state()


def assert_same(actual: Any, expected: Any, name: str = "") -> None:
    """Equal bits, dtypes and strides."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, check_stride=True, msg=lambda text: f"{name}: {text}")


DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rand": lambda x: torch.rand(37, 3),
    "rand_double": lambda x: torch.rand(37, dtype=torch.float64),
    "rand_bfloat16": lambda x: torch.rand(37, dtype=torch.bfloat16),
    "rand_like": lambda x: torch.rand_like(x),
    "rand_like_strided": lambda x: torch.rand_like(x.t()),
    "randn": lambda x: torch.randn(37),
    "randn_half": lambda x: torch.randn(37, dtype=torch.float16),
    "randn_like": lambda x: torch.randn_like(x),
    "randint": lambda x: torch.randint(10, (37,)),
    "randint_low": lambda x: torch.randint(-5, 10, (37,), dtype=torch.int32),
    "randint_wide": lambda x: torch.randint(-(2**62), 2**62, (37,)),
    "randint_float": lambda x: torch.randint(0, 7, (37,), dtype=torch.float32),
    "randint_like": lambda x: torch.randint_like(x, 10),
    "randint_like_low": lambda x: torch.randint_like(x, 3, 10),
    "randperm": lambda x: torch.randperm(37),
    "normal": lambda x: torch.normal(1.0, 2.0, (37,)),
    "normal_tensors": lambda x: torch.normal(x, x.abs()),
    "normal_mean": lambda x: torch.normal(x, 2.0),
    "normal_std": lambda x: torch.normal(0.5, x.abs()),
    "normal_strided": lambda x: torch.normal(x.t() * 2, 2.0),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_strided": lambda x: torch.bernoulli((x.t() * 2).sigmoid().clone()),
    "bernoulli_p": lambda x: torch.bernoulli(x, 0.3),
    "multinomial": lambda x: torch.multinomial(x.abs(), 2),
    "multinomial_many": lambda x: torch.multinomial(x.abs(), 9, replacement=True),
    "uniform_": lambda x: x.clone().uniform_(1, 3),
    "normal_": lambda x: x.clone().normal_(1, 3),
    "exponential_": lambda x: x.clone().exponential_(2.0),
    "geometric_": lambda x: x.clone().geometric_(0.3),
    "log_normal_": lambda x: x.clone().log_normal_(0.1, 0.5),
    "cauchy_": lambda x: x.clone().cauchy_(1.0, 2.0),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.3),
    "bernoulli_tensor_": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    "bernoulli_strided_": lambda x: torch.empty_like(x.t()).bernoulli_(0.3),
    "rand_complex": lambda x: torch.rand(37, dtype=torch.complex64),
    "randn_complex": lambda x: torch.randn(37, dtype=torch.complex64),
    "randn_complex_double": lambda x: torch.randn(3, 7, dtype=torch.complex128),
    "randn_like_complex_strided": lambda x: torch.randn_like(x.to(torch.complex64).t()),
    "normal_complex_": lambda x: x.to(torch.complex64).normal_(2.0, 3.0),
    "uniform_complex_": lambda x: x.to(torch.complex64).uniform_(1, 3),
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_in_place": lambda x: F.dropout(x.clone(), 0.3, inplace=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "unused": lambda x: (torch.rand(3), torch.rand(7))[1],
    "two": lambda x: (torch.rand(5), torch.rand(5), x.clone().exponential_(), x.clone().exponential_()),
    "scalar": lambda x: torch.rand(()),
    "empty": lambda x: (torch.rand(0, 3), F.dropout(x[:0], 0.3)),
}
UNDRAWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "eval": lambda x: F.dropout(x, 0.3, training=False),
    "p0": lambda x: F.dropout(x, 0.0),
    "p1": lambda x: F.dropout(x, 1.0),
}


def everything(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {**{name: fn(x) for name, fn in (DRAWS | UNDRAWN).items()}, "into_an_input": y.uniform_().mul_(2)}


def test_eager_bits() -> None:
    """One graph of all draws, so their order is tested too."""
    x = torch.randn(11, 7)
    actual, state = seeded(compiled(everything, "eager"), x, x)
    expected, eager_state = seeded(everything, x, x)
    for name in expected:
        assert_same(actual[name], expected[name], name)
    assert torch.equal(state, eager_state)


def test_graph_is_reproducible_and_new_on_each_call() -> None:
    x = torch.randn(11, 7)
    run = compiled(everything, "graph")
    first, _ = seeded(run, x, x)
    again, _ = seeded(run, x, x)
    other = run(x, x.clone())
    for name, eager in everything(x, x.clone()).items():
        assert_same(again[name], first[name], name)
        if name in UNDRAWN:
            assert_same(first[name], eager, name)
            continue
        for value, model in zip(leaves(first[name]), leaves(eager), strict=True):
            assert (value.shape, value.dtype, value.stride()) == (model.shape, model.dtype, model.stride()), name
        assert name == "empty" or not all(map(torch.equal, leaves(other[name]), leaves(first[name]))), name


def leaves(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


TRAINED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x * 2, 0.3),
    "twice": lambda x: F.dropout(F.dropout(x, 0.1) * 3, 0.7),
    "in_place": lambda x: F.dropout(x * 2, 0.3, inplace=True),
    "channels": lambda x: F.dropout2d(x[None, :, :, None] * 2, 0.5),
    "strided": lambda x: F.dropout(x.t() * 2, 0.3),
    "expanded": lambda x: F.dropout(x[:, :1].expand(-1, 4), 0.3),
    "p1": lambda x: F.dropout(x * 2, 1.0),
    "noise": lambda x: x * torch.randn_like(x) * torch.rand(()),
    "in_place_noise": lambda x: x * torch.empty(x.shape).uniform_(0.5, 1.5),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], dropout_p=0.3),
    "equal_draws": lambda x: x * torch.empty(7).exponential_() - x * torch.empty(7).exponential_(),
    "rrelu": lambda x: F.rrelu(x * 2, training=True) + F.rrelu(x * 2, training=True),
    "unused": lambda x: (torch.rand(3), x * torch.rand(7))[1],
}
ROUNDED = {"attention", "equal_draws"}  # other arithmetic than drawing that rounds in its own way


HALF = [(name, torch.bfloat16) for name in ("dropout", "noise", "strided")]


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in TRAINED), *HALF])
def test_eager_bits_in_training(name: str, dtype: torch.dtype) -> None:
    fn, x = TRAINED[name], torch.randn(11, 7).to(dtype)
    actual, expected = trained(compiled(fn, "eager"), x), trained(fn, x)
    if name in ROUNDED:
        torch.testing.assert_close(actual[:2], expected[:2])
    else:
        assert_same(actual[:2], expected[:2])
    assert_same(actual[2:], expected[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_graph_mask_is_the_same_in_forward_and_backward(dtype: torch.dtype) -> None:
    fn = compiled(lambda x: F.dropout(x, 0.25), "graph")
    y, grad, *_ = trained(fn, torch.ones(50, 40, dtype=dtype))
    assert_same(y, grad)
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75, dtype=dtype).item()}
    assert 0.7 < (y != 0).double().mean() < 0.8


@pytest.mark.parametrize("mode", MODES)
def test_mask_under_activation_checkpointing(mode: str) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.dropout(x, 0.3).sin(), 0.2) * torch.rand(40)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)

    x = torch.rand(50, 40) + 0.5
    actual = trained(compiled(fn, mode), x)
    if mode == "eager":
        expected = trained(fn, x)
        torch.testing.assert_close(actual[:2], expected[:2])
        assert_same(actual[2:], expected[2:])
    torch.testing.assert_close(actual[0] != 0, actual[1] != 0)
    assert 0.2 < (actual[0] == 0).double().mean() < 0.8


def test_graph_gradient_under_activation_checkpointing() -> None:
    """d(x * noise) is the very noise, though backward computes it again."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: x * torch.randn(40).exp(), x, use_reentrant=False)  # type: ignore[no-any-return]

    y, grad, *_ = trained(compiled(fn, "graph"), torch.ones(50, 40))
    assert_same(y, grad)


@pytest.mark.parametrize("mode", MODES)
def test_backward_advances_no_generator(mode: str) -> None:
    fn = compiled(lambda x: (torch.rand(3), F.dropout(x, 0.3) * torch.rand(7))[1], mode)
    *_, between, after = trained(fn, torch.randn(11, 7))
    assert torch.equal(between, after)


class NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(7)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * torch.rand(7)


def test_draw_in_a_custom_backward() -> None:
    fn, x = NoisyGradient.apply, torch.ones(11, 7)
    assert_same(trained(compiled(lambda x: fn(x), "eager"), x), trained(fn, x))
    y, grad, *_ = trained(compiled(lambda x: fn(x), "graph"), x)
    assert not torch.equal(y, grad)
    assert (grad >= 0).all() and (grad < 1).all() and grad[0].unique().numel() == 7


@pytest.mark.parametrize("mode", MODES)
def test_symbolic_sizes(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2, 0.3) + torch.rand(x.shape[0], 1) * x + F.dropout(x.t() * 2, 0.5).t()

    run = torch.compile(fn, backend=neuron, options={"rng": mode, "fallback": "error"}, dynamic=True, fullgraph=True)
    for rows in (11, 5, 11):
        x = torch.randn(rows, 7)
        actual = trained(run, x)
        assert_same(trained(run, x), actual)
        if mode == "eager":
            expected = trained(fn, x)
            torch.testing.assert_close(actual[:2], expected[:2])
            assert_same(actual[2:], expected[2:])


@pytest.mark.parametrize("mode", MODES)
def test_symbolic_sizes_without_gradient(mode: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.3) + torch.rand(x.shape[0] * 2, 1).sum()

    run = torch.compile(fn, backend=neuron, options={"rng": mode}, dynamic=True, fullgraph=True)
    for rows in (11, 5):
        x = torch.ones(rows, 7)
        torch.testing.assert_close(seeded(run, x)[0], seeded(fn, x)[0] if mode == "eager" else seeded(run, x)[0])
        assert not torch.equal(run(x), run(x))


MOMENTS: dict[str, tuple[Callable[[], torch.Tensor], float, float, float]] = {
    # Mean, variance, skewness.
    "rand": (lambda: torch.rand(COUNT), 1 / 2, 1 / 12, 0),
    "rand_double": (lambda: torch.rand(COUNT, dtype=torch.float64), 1 / 2, 1 / 12, 0),
    "uniform_": (lambda: torch.empty(COUNT).uniform_(-2, 4), 1, 3, 0),
    "randn": (lambda: torch.randn(COUNT), 0, 1, 0),
    "randn_double": (lambda: torch.randn(COUNT, dtype=torch.float64), 0, 1, 0),
    "randn_bfloat16": (lambda: torch.randn(COUNT, dtype=torch.bfloat16), 0, 1, 0),
    "randn_complex": (lambda: torch.view_as_real(torch.randn(COUNT, dtype=torch.complex64)).flatten(), 0, 1 / 2, 0),
    "normal_complex_": (lambda: torch.empty(COUNT, dtype=torch.complex64).normal_(3, 2).real, 3, 2, 0),
    "uniform_complex_": (lambda: torch.empty(COUNT, dtype=torch.complex64).uniform_(-2, 4).imag, 1, 3, 0),
    "normal": (lambda: torch.normal(torch.full((COUNT,), 3.0), torch.full((COUNT,), 2.0)), 3, 4, 0),
    "log_normal_": (lambda: torch.empty(COUNT).log_normal_(0, 0.25), 1.03174, 0.068655, 0.77825),
    "exponential_": (lambda: torch.empty(COUNT).exponential_(2), 1 / 2, 1 / 4, 2),
    "exponential_double": (lambda: torch.empty(COUNT, dtype=torch.float64).exponential_(2), 1 / 2, 1 / 4, 2),
    "geometric_": (lambda: torch.empty(COUNT).geometric_(0.25), 4, 12, 2.020726),
    "randint": (lambda: torch.randint(-3, 9, (COUNT,)), 2.5, 143 / 12, 0),
    "randint_wide": (lambda: torch.randint(0, 2**40, (COUNT,)) / 2**40, 1 / 2, 1 / 12, 0),
    "bernoulli": (lambda: torch.bernoulli(torch.full((COUNT,), 0.2)), 0.2, 0.16, 1.5),
    "bernoulli_p": (lambda: torch.empty(COUNT).bernoulli_(0.2), 0.2, 0.16, 1.5),
    "dropout": (lambda: F.dropout(torch.ones(COUNT), 0.8), 1, 4, 1.5),
    "randperm": (lambda: torch.randperm(COUNT) / COUNT, 1 / 2, 1 / 12, 0),
    "multinomial": (lambda: torch.multinomial(torch.tensor([0.1, 0.0, 0.3, 0.6]), COUNT // 10, replacement=True), 2.4, 0.84, -1.652207),
    "multinomial_first": (lambda: torch.multinomial(torch.tensor([0.1, 0.0, 0.3, 0.6]).expand(COUNT, 4), 2)[:, 0], 2.4, 0.84, -1.652207),
}
COUNT = 200_000


@pytest.fixture(scope="module")
def samples() -> Any:
    return compiled(lambda: {name: fn() for name, (fn, *_) in MOMENTS.items()}, "graph")()


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name: str, samples: dict[str, torch.Tensor]) -> None:
    _, mean, variance, skewness = MOMENTS[name]
    x = samples[name].double()
    deviation = x - mean
    # Five standard errors of each estimate, from the sample's own higher moments.
    error = 5 / x.numel() ** 0.5
    spread = deviation.std()
    assert abs(deviation.mean()) < error * spread + 2e-3 * ("bfloat16" in name)
    assert abs(deviation.square().mean() - variance) < error * deviation.square().std() + 1e-5
    cube = (deviation / variance**0.5) ** 3
    assert abs(cube.mean() - skewness) < error * cube.std() + 1e-4


def test_tails_of_the_normal() -> None:
    x = compiled(lambda: torch.randn(2_000_000), "graph")()
    for threshold, expected in ((1.0, 0.317311), (2.0, 0.0455003), (3.0, 0.0026998), (4.0, 6.33425e-5)):
        beyond = (x.abs() > threshold).double().mean().item()
        assert abs(beyond - expected) < 5 * (expected / x.numel()) ** 0.5


def test_no_correlation() -> None:
    fn = compiled(lambda: (torch.randn(COUNT), torch.randn(COUNT), torch.rand(COUNT) - 0.5), "graph")
    streams = [t.double() for t in (*fn(), *fn())]
    streams.append(streams[0].roll(1))
    correlation = torch.corrcoef(torch.stack(streams)).fill_diagonal_(0)
    assert correlation.abs().max() < 5 / COUNT**0.5


def test_first_of_two_without_replacement_is_not_drawn_again() -> None:
    x = compiled(lambda: torch.multinomial(torch.tensor([1.0, 2.0, 3.0]).expand(1000, 3), 3), "graph")()
    assert_same(x.sort(-1)[0], torch.arange(3).expand(1000, 3).contiguous())


def test_permutation() -> None:
    x = compiled(lambda: torch.randperm(1000), "graph")()
    assert_same(x.sort()[0], torch.arange(1000))


def test_python_and_numpy_random() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * random.random() + x * float(np.random.rand())

    def run(call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        random.seed(3)
        np.random.seed(3)
        return [call(torch.ones(3)) for _ in range(3)]

    torch.testing.assert_close(run(torch.compile(fn, backend=neuron)), run(fn))


@pytest.mark.parametrize("mode", MODES)
def test_generator_of_the_users_own(mode: str) -> None:
    generator = torch.Generator()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(3, generator=generator)

    run = torch.compile(fn, backend=neuron, options={"rng": mode})
    torch.manual_seed(1)
    before = torch.get_rng_state()
    generator.manual_seed(5)
    actual = [run(torch.ones(3)) for _ in range(2)]
    generator.manual_seed(5)
    assert_same(actual, [fn(torch.ones(3)) for _ in range(2)])
    assert torch.equal(before, torch.get_rng_state())


_WARM = """
import torch, torch.nn.functional as F
from torch._dynamo.utils import counters
from neuron_dynamo.backend import neuron

def fn(x):
    return F.dropout(x, 0.5) * torch.rand(40)

for mode, gradient in (("graph", True), ("graph", False), ("eager", True), ("eager", False)):
    torch._dynamo.reset()
    run = torch.compile(fn, backend=neuron, options={"rng": mode})
    x = torch.ones(3, 40, requires_grad=gradient)
    torch.manual_seed(7)
    a, b = run(x), run(x)
    assert not torch.equal(a, b)
    torch.manual_seed(7)
    assert torch.equal(a, run(x))
    print(a.tolist(), torch.autograd.grad(a.sum(), x)[0].tolist() if gradient else None)
print(counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_warm_cache_in_another_process() -> None:
    """In both modes."""
    runs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", _WARM], cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        runs.append(done.stdout.splitlines())
    cold, warm = runs
    assert cold[:-1] == warm[:-1]
    assert (cold[-1], warm[-1]) == ("0", "4")
