"""Capture: what torch.compile(..., backend="neuron") must keep of eager's behaviour, whatever goes in and comes out."""

from __future__ import annotations

import copy
import dataclasses
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

import neuron_dynamo


def compiled(fn: Callable[..., Any], dynamic: bool | None = None, fullgraph: bool = True, **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend="neuron", fullgraph=fullgraph, dynamic=dynamic, options=options or None)


def same(actual: Any, expected: Any) -> None:
    """Values as close as assert_close wants, strides equal; what is no tensor is equal."""
    ours, theirs = pytree.tree_flatten(actual), pytree.tree_flatten(expected)
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0], strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, check_stride=True)
        else:
            assert type(a) is type(b) and a == b


def test_both_names_are_registered_without_import_of_ours() -> None:
    assert {"neuron", "neuron_dynamo"} <= set(torch._dynamo.list_backends())


# Outputs


OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "input": lambda x: x,
    "input and more": lambda x: (x, x + 1),
    "view of input": lambda x: (x.t(), x[:, 1:], x.reshape(-1), x + 1),
    "none and constants": lambda x: (x + 1, None, 3, "text", 2.5, True),
    "nested": lambda x: {"a": [x + 1, (x * 2, None)], "b": x.sum()},
    "twice the same": lambda x: (y := x + 1, y),
    "views of one result": lambda x: (y := x * 2, y.t(), y[0]),
    "transposed result": lambda x: (x * 2).t(),
    "expanded result": lambda x: (x * 2).sum(0).expand(5, 4),
    "narrowed result": lambda x: (x * 2)[:, ::2],
    "diagonal": lambda x: torch.diagonal(x @ x.t()),
    "only a constant": lambda x: torch.arange(4),
    "empty": lambda x: (x[:0], torch.zeros(0, 3), x[:, :0].sum(1)),
    "scalar": lambda x: (x.sum(), torch.tensor(3.0) * 2, x[0, 0]),
    "bool": lambda x: (x > 0, (x > 0).any(), (x > 0).all(1)),
    "channels last": lambda x: torch.cat([x, x]).reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last) * 2,
}


@pytest.mark.parametrize("case", OUTPUTS)
@pytest.mark.parametrize("layout", ["dense", "transposed", "sliced", "offset"])
def test_outputs(case: str, layout: str) -> None:
    x = {
        "dense": lambda: torch.randn(3, 4),
        "transposed": lambda: torch.randn(4, 3).t(),
        "sliced": lambda: torch.randn(6, 8)[::2, 1::2],
        "offset": lambda: torch.randn(13)[1:].view(3, 4),  # 4 bytes off: not aligned for XLA
    }[layout]()
    fn = OUTPUTS[case]
    same(compiled(fn)(x), fn(x))


def test_output_that_is_an_input_is_that_very_tensor() -> None:
    x = torch.randn(3)
    assert compiled(lambda x: (x, x * 2))(x)[0] is x


def test_results_are_fresh() -> None:
    x = torch.randn(3)
    f = compiled(lambda x: x.clone())
    first = f(x)
    first.add_(1)
    same(f(x), x)


# Inputs


def test_no_tensor_at_all() -> None:
    same(compiled(lambda: torch.ones(3) * 2)(), torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.float64, torch.float16, torch.bfloat16]
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.arange(-3, 9).reshape(3, 4).to(dtype)
    same(
        compiled(lambda x: (x, ~x if x.dtype == torch.bool else x * 2, x.t(), x == x[0]))(x),
        (x, ~x if dtype == torch.bool else x * 2, x.t(), x == x[0]),
    )


@dataclasses.dataclass
class Config:
    scale: float
    name: str | None


def test_python_arguments() -> None:
    def fn(x: torch.Tensor, scale: float, flag: bool, extra: dict[str, Any], config: Config, nothing: None = None) -> Any:
        y = x * scale + extra["bias"] * config.scale
        return y.relu() if flag else y

    f = compiled(fn)
    for scale, flag in ((2.0, True), (3.5, False), (-1.0, True)):
        args = (torch.randn(4), scale, flag, {"bias": torch.ones(4)}, Config(0.5, None))
        same(f(*args), fn(*args))


def test_scalars_that_become_equal() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, a: int, b: int) -> Any:
        return torch.add(x, y, alpha=a) + torch.add(y, x, alpha=b)

    counter = CompileCounterWithBackend("neuron")
    f = torch.compile(fn, backend=counter)
    for a, b in ((2, 3), (3, 3), (4, 5), (5, 5), (6, 7), (7, 7)):
        x, y = torch.randn(3), torch.randn(3)
        same(f(x, y, a, b), fn(x, y, a, b))
    assert counter.frame_count <= 4


def test_expanded_and_conjugated_inputs() -> None:
    x = torch.randn(1, 4).expand(3, 4)
    torch.testing.assert_close(compiled(lambda x: x + 1)(x), x + 1)
    z = torch.randn(3, dtype=torch.complex64).conj()
    torch.testing.assert_close(compiled(lambda z: z * 2)(z), z * 2)


def test_parameters_swapped_between_calls() -> None:
    model = torch.nn.Linear(4, 4)
    f = torch.compile(model, backend="neuron")
    x = torch.randn(2, 4)

    def check() -> None:
        torch.testing.assert_close(f(x), torch.nn.functional.linear(x, model.weight, model.bias))

    check()
    with torch.no_grad():
        model.weight.add_(1)
    check()
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    check()
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True)
    check()
    model.weight.data = torch.randn(4, 4)
    check()
    model.weight = torch.nn.Parameter(torch.randn(4, 4))
    check()
    model.eval()
    with torch.no_grad():
        check()


def test_state_dict_of_the_compiled_model_loads_into_the_plain_one() -> None:
    model = torch.nn.Linear(3, 3)
    f = torch.compile(model, backend="neuron")
    f(torch.randn(2, 3))
    other = torch.nn.Linear(3, 3)
    other.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in f.state_dict().items()})
    torch.testing.assert_close(other.weight, model.weight)
    model.compile(backend="neuron")
    assert list(model.state_dict()) == ["weight", "bias"]


def test_device_error_names_the_device() -> None:
    with pytest.raises(Exception, match=r"ND003.*(\n.*)*meta"):
        compiled(lambda x: x + 1)(torch.randn(3, device="meta"))


# Mutation


def _mutate(name: str) -> Callable[..., Any]:
    def copy_(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.copy_(y)
        return x + 1

    def mul_(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(2)
        return x, y

    def view(x: torch.Tensor, y: torch.Tensor) -> Any:
        x[:, 0].mul_(2)
        x[1:, 2:].add_(y[1:, 2:])
        return x.sum()

    def index_copy(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.index_copy_(0, torch.tensor([2, 0]), y[:2])
        return None

    def read_then_write(x: torch.Tensor, y: torch.Tensor) -> Any:
        before = x.t()
        total = before @ y
        x.zero_()
        return total, x.t()

    def swap(x: torch.Tensor, y: torch.Tensor) -> Any:
        keep = x.clone()
        x.copy_(y)
        y.copy_(keep)
        return keep

    def unsqueeze(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.unsqueeze_(0)
        return x + 1

    def fallback_between(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        s = torch.linalg.eigvals(x @ y.t()).abs()
        x.mul_(s[0])
        return x * 1

    return locals()[name]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["copy_", "mul_", "view", "index_copy", "read_then_write", "swap", "unsqueeze", "fallback_between"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.filterwarnings("ignore:ND110")
def test_input_mutation(name: str, transposed: bool) -> None:
    fn = _mutate(name)
    f = compiled(fn, fullgraph=name != "unsqueeze")  # Dynamo leaves in-place views of inputs to eager
    for _ in range(2):
        args = [torch.randn(4, 3).t() if transposed else torch.randn(3, 4) for _ in range(2)]
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        torch.testing.assert_close(f(*ours), fn(*theirs))
        torch.testing.assert_close(ours, theirs, check_stride=True)


def test_aliased_inputs() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        return y * 2

    ours, theirs = torch.zeros(6), torch.zeros(6)
    torch.testing.assert_close(compiled(fn)(ours[:4], ours[2:]), fn(theirs[:4], theirs[2:]))
    torch.testing.assert_close(ours, theirs)


class Ring(torch.nn.Module):
    """Three kinds of state: a buffer returned after mutation, a ring buffer, a plain tensor attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("ring", torch.zeros(4, 3), persistent=False)
        self.plain = torch.zeros(4, 3)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> Any:
        self.total.add_(x)
        self.ring.copy_(torch.cat([self.ring[1:], x[None]]))
        self.plain.index_copy_(0, at, x[None])
        return self.total, self.ring.sum(0), self.plain * 2


def test_buffers_over_three_calls() -> None:
    ours, theirs = Ring(), Ring()
    f = compiled(ours)
    for step in range(3):
        x, at = torch.randn(3), torch.tensor([step])
        torch.testing.assert_close(f(x, at), theirs(x, at))
        torch.testing.assert_close((ours.total, ours.ring, ours.plain), (theirs.total, theirs.ring, theirs.plain))


# Training


def test_only_one_of_two_outputs_in_the_loss() -> None:
    model = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4, requires_grad=True)

    def fn(x: torch.Tensor) -> Any:
        y = model(x)
        return y, y.exp()

    compiled(fn)(x)[1].sum().backward()
    got = [x.grad, model.weight.grad]
    x.grad = model.weight.grad = None
    fn(x)[1].sum().backward()
    torch.testing.assert_close(got, [x.grad, model.weight.grad])


def test_gradients_with_strided_tangent_and_frozen_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    x = torch.randn(5, 4)
    grads = []
    for f in (torch.compile(model, backend="neuron"), model):
        model.zero_grad()
        f(x).sum().backward()  # the tangent is expanded, stride 0
        grads.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads)


def test_graph_input_saved_for_backward_is_still_versioned() -> None:
    x = torch.randn(3, requires_grad=True)
    w = torch.randn(3)
    y = compiled(lambda x, w: (x * w).sum())(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_retained_graph_is_gone_through_again(dynamic: bool) -> None:
    """As GANs and several losses of one forward do; in the second round with programs restored from the disk."""
    x = torch.randn(5, 4, requires_grad=True)
    weight = torch.randn(4, 3, requires_grad=True)

    def gradients(fn: Callable[..., Any]) -> list[Any]:
        once, other = (result.sum() for result in fn(x, weight))
        first = torch.autograd.grad(once, (x, weight), retain_graph=True)
        return [first, torch.autograd.grad(once + other, (x, weight), retain_graph=True), torch.autograd.grad(other, (x, weight))]

    def fn(x: torch.Tensor, weight: torch.Tensor) -> Any:
        hidden = torch.nn.functional.gelu(x @ weight)  # saved: made by the forward graph, and no output of it
        return hidden.softmax(-1).square(), hidden.tanh()

    hits = counters["aot_autograd"]["autograd_cache_hit"]
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled(fn, dynamic)), gradients(fn))
        torch._dynamo.reset()
    assert counters["aot_autograd"]["autograd_cache_hit"] == hits + 1


# Dynamic shapes


def test_dynamic_shapes_cost_one_capture() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        return (x.view(x.size(0), -1) @ w).relu() * x.size(0), x.size(0), x.shape[0] * 2

    counter = CompileCounterWithBackend("neuron")
    f = torch.compile(fn, backend=counter, dynamic=True)
    w = torch.randn(6, 5)
    for _epoch in range(2):
        for n in (4, 8, 7, 9):
            x = torch.randn(n, 2, 3)
            torch.testing.assert_close(f(x, w), fn(x, w))
    assert counter.frame_count == 1
    assert sum(r.cache == "miss" for r in neuron_dynamo.reports()) == 4


def test_mark_dynamic_and_training() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    reference = copy.deepcopy(model)
    counter = CompileCounterWithBackend("neuron")
    f = torch.compile(model, backend=counter)
    for n in (3, 5, 9, 3):
        x = torch.randn(n, 4)
        torch._dynamo.mark_dynamic(x, 0)
        f(x).square().sum().backward()
        reference(x).square().sum().backward()
    assert counter.frame_count == 1
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])


def test_automatic_dynamic_shapes() -> None:
    counter = CompileCounterWithBackend("neuron")
    f = torch.compile(lambda x: torch.cat([x, x * 2]).softmax(0), backend=counter)
    for n in (2, 3, 4, 5, 6):
        x = torch.randn(n, 3)
        torch.testing.assert_close(f(x), torch.cat([x, x * 2]).softmax(0))
    assert counter.frame_count == 2


def test_dynamic_reshape_of_a_strided_tensor() -> None:
    x = torch.empty_strided((4, 32, 9), (288, 9, 1)).normal_()
    f = compiled(lambda x: x.transpose(1, 2).reshape(x.shape[0], -1) + 1, dynamic=True)
    torch.testing.assert_close(f(x), x.transpose(1, 2).reshape(4, -1) + 1)


# Several at once


def test_threads_and_several_functions() -> None:
    functions = [compiled(lambda x, k=k: (x @ x.t() * k).softmax(-1), dynamic=False) for k in range(1, 4)]
    inputs = [torch.randn(n, 8) for n in (3, 4, 5)]
    wanted = [(x @ x.t() * k).softmax(-1) for k, x in zip(range(1, 4), inputs, strict=True)]
    for f, x in zip(functions, inputs, strict=True):
        f(x)
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(50):
            try:
                torch.testing.assert_close(functions[number](inputs[number]), wanted[number])
            except AssertionError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(n % 3,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_mutated_inputs_are_aliases_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from neuron_dynamo import compile as story

    signatures = []
    obtain = story.obtain
    monkeypatch.setattr(story, "obtain", lambda program, *rest: (signatures.append(program.signature), obtain(program, *rest))[1])

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        y.add_(x)
        return x * 2

    compiled(fn)(torch.ones(3), torch.ones(3))
    (signature,) = signatures
    ((output, argument),) = signature.aliases
    assert signature.outputs[output] == signature.inputs[argument]


def test_overlapping_inputs_returned_after_mutation() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a.add_(1), b.mul_(2)

    ours, theirs = torch.arange(24.0), torch.arange(24.0)
    got, wanted = compiled(fn)(ours[:10], ours[5:15]), fn(theirs[:10], theirs[5:15])
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(ours, theirs)
    assert [t.storage_offset() for t in got] == [t.storage_offset() for t in wanted]


def test_a_part_of_a_result_shares_its_memory() -> None:
    y, part = compiled(lambda x: ((y := x + 1), y[1]))(torch.zeros(4, 6))
    y.zero_()
    same(part, torch.zeros(6))
    assert part.storage_offset() == 6


def test_new_shapes_from_several_threads() -> None:
    functions = [compiled(lambda x, k=k: (x @ x.t() * k).softmax(-1), dynamic=True) for k in (1, 2)]
    for f in functions:
        f(torch.randn(4, 8))
    wrong: list[str] = []

    def work(offset: int) -> None:
        for step in range(12):
            x = torch.randn(5 + (step + offset) % 4, 8)
            k = (step + offset) % 2
            try:
                torch.testing.assert_close(functions[k](x), (x @ x.t() * (k + 1)).softmax(-1))
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_a_dropped_model_takes_its_programs_along() -> None:
    """Neither Dynamo's functions nor our graphs outlive the model, once Dynamo is reset."""

    def compiled_functions() -> int:
        return sum(name.startswith("__compiled_fn") for m in list(sys.modules.values()) for name in list(getattr(m, "__dict__", ())))

    gc.collect()
    before = compiled_functions()
    for _ in range(3):
        with torch.no_grad():
            torch.compile(torch.nn.Linear(4, 4), backend="neuron")(torch.randn(2, 4))
    assert compiled_functions() > before, "of the last model, so that the count means something"
    torch._dynamo.reset()
    gc.collect()
    assert compiled_functions() <= before
