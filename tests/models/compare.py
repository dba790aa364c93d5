"""Runs a zoo model eagerly, in float64, or compiled, and compares every tensor that the user can see afterwards.

The yardstick is the float64 run: a compiled run may be at most twice as far from it as eager PyTorch is in the same precision,
plus a floor of a few units of rounding. The floor is relative to the tensor's own largest element, and for gradients to at least a
tenth of the model's largest gradient (in f32 that is 1e-6 of it): a bias before BatchNorm has a true gradient of zero, and every
engine returns other noise. In bf16 eager's error of one tensor is a single draw of rounding noise, which may be small by luck (Inductor
is up to 3.5 times further off on CLIP's logit scale): there one tensor may be four times as far, but all together only 1.5 times.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tests.models.zoo import ZooModel

BACKEND = os.environ.get("ND_TEST_BACKEND", "neuron")
FLOOR = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7}
FACTOR = {torch.float32: 2, torch.bfloat16: 4}
TYPICAL_RATIO = 1.5
ENOUGH_TENSORS = 10
"""A mean over fewer tensors is as much luck as one tensor's error."""
GRADIENT_SCALE = 0.1
SEED = 7


class Float64(TorchFunctionMode):
    """Everything that a model explicitly does in float32 is done in float64: norms, softmaxes and rotary tables of `transformers`."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        args, kwargs = pytree.tree_map(lambda leaf: torch.float64 if leaf is torch.float32 else leaf, (args, dict(kwargs or {})))
        replacement = {torch.Tensor.float: torch.Tensor.double, torch._grouped_mm: grouped_mm}.get(func, func)
        return replacement(*args, **kwargs)


def grouped_mm(rows: Tensor, weights: Tensor, offs: Tensor, **_: Any) -> Tensor:
    """torch._grouped_mm in plain PyTorch (which has no float64 kernel): rows up to offs[0] meet weights[0], up to offs[1] weights[1] ..."""
    ends = offs.tolist()
    groups = zip([0, *ends[:-1]], ends, weights, strict=True)
    return torch.cat([*(rows[start:end] @ weight for start, end, weight in groups), rows[ends[-1] :] @ torch.zeros_like(weights[0])])


@dataclass(frozen=True)
class Result:
    """What one run left behind: named tensors (outputs, loss, gradients, buffers, inputs), the generator's state, graphs and time."""

    tensors: dict[str, Tensor]
    rng_state: Tensor
    graphs: int = 0
    breaks: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def largest_gradient(self) -> float:
        return max((magnitude(t) for name, t in self.tensors.items() if name.startswith("grad")), default=0.0)


def magnitude(tensor: Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0


def _flatten(prefix: str, tree: Any) -> dict[str, Tensor]:
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return {prefix + pytree.keystr(path): leaf for path, leaf in leaves if isinstance(leaf, Tensor)}


def compiler(backend: str = BACKEND, **options: Any) -> Callable[[Any], Any]:
    """`torch.compile` with that backend; options go to our own backend only, the others have none of that name."""
    mine = options if options and backend.startswith("neuron") else None
    return lambda target: torch.compile(target, backend=backend, options=mine)


@contextmanager
def eager_limits(autocast: bool) -> Iterator[None]:
    """Keeps eager PyTorch off kernels that it cannot run under bf16 autocast on every CPU, so that there is something to compare with.

    oneDNN has no bf16 LSTM where torch.ops.mkldnn._is_mkldnn_bf16_supported() is false. The fused inference path of
    nn.TransformerEncoder returns bf16 in eager, but f32 from a graph that AOTAutograd captured, whatever the backend (aot_eager
    too); the unfused form returns f32 in both.
    """
    fastpath, onednn = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(fastpath and not autocast)
        torch._C._set_mkldnn_enabled(onednn and not autocast)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        torch._C._set_mkldnn_enabled(onednn)


def run(
    model: ZooModel,
    *,
    training: bool,
    autocast: bool = False,
    compile_with: Callable[[Any], Any] | None = None,
    float64: bool = False,
) -> Result:
    """One call of a copy of the model from a fixed seed; with `training` in train mode and with a backward."""
    module: nn.Module = copy.deepcopy(model.module).train(training)
    args, kwargs = pytree.tree_map_only(Tensor, torch.clone, (model.args, dict(model.kwargs)))
    with ExitStack() as stack:
        if float64:
            module.double()
            to64 = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
            args, kwargs = pytree.tree_map_only(Tensor, to64, (args, kwargs))
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float64)
            stack.enter_context(Float64())
        if training:
            pytree.tree_map_only(Tensor, lambda t: t.requires_grad_(t.is_floating_point()), (args, kwargs))
        else:
            stack.enter_context(torch.no_grad())
        if compile_with is not None:
            torch._dynamo.reset()
            counters.clear()
            stack.enter_context(torch._dynamo.config.patch(**model.dynamo))
        else:
            stack.enter_context(eager_limits(autocast))
        stack.enter_context(torch.autocast("cpu", torch.bfloat16, enabled=autocast))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(SEED)
        start = time.perf_counter()
        out = (module if compile_with is None else compile_with(module))(*args, **kwargs)
        loss = model.loss(out)
        if training:
            loss.backward()
        seconds = time.perf_counter() - start
        rng_state = torch.get_rng_state()
    tensors = {**_flatten("out", out), "loss": loss, **_flatten("input", (args, kwargs))}
    tensors |= {f"buffer.{name}": buffer for name, buffer in module.named_buffers()}
    tensors |= {f"grad.{name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    tensors |= {f"grad.{name}": t.grad for name, t in list(tensors.items()) if name.startswith("input") and t.grad is not None}
    return Result(
        {name: t.detach().clone() for name, t in tensors.items()},
        rng_state,
        counters["stats"]["unique_graphs"],
        dict(counters["graph_break"]),
        seconds,
    )


@dataclass(frozen=True)
class Error:
    """How far one tensor is from float64, next to eager's distance and to what is allowed; all in absolute numbers."""

    name: str
    compiled: float
    eager: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.compiled <= self.allowed


def errors(compiled: Result, eager: Result, exact: Result, dtype: torch.dtype = torch.float32) -> list[Error]:
    """One Error per tensor. Raises AssertionError where names, shapes, types or integer values differ from eager's."""
    assert compiled.tensors.keys() == eager.tensors.keys() == exact.tensors.keys(), (
        f"only compiled: {compiled.tensors.keys() - eager.tensors.keys()}; only eager: {eager.tensors.keys() - compiled.tensors.keys()}; "
        f"only float64: {exact.tensors.keys() - eager.tensors.keys()}"
    )
    measured: list[tuple[str, float, float, float]] = []
    for name, got in compiled.tensors.items():
        want, true = eager.tensors[name], exact.tensors[name]
        assert got.shape == want.shape and got.dtype == want.dtype, f"{name}: {got.dtype}{got.shape}, eager {want.dtype}{want.shape}"
        if not want.is_floating_point():
            assert torch.equal(got, want), f"{name}: {got} but eager {want}"
            continue
        scale = magnitude(true)
        if name.startswith("grad"):
            scale = max(scale, GRADIENT_SCALE * exact.largest_gradient)
        measured.append((name, distance(got, true), distance(want, true), scale))
    return [
        Error(name, error, eager_error, FACTOR[dtype] * eager_error + FLOOR[dtype] * scale) for name, error, eager_error, scale in measured
    ]


def typical_ratio(found: list[Error]) -> float:
    """Geometric mean over tensors of compiled error over eager error: 1 where the two are equally exact."""
    logs = [math.log(error.compiled / error.eager) for error in found if error.compiled and error.eager]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def distance(got: Tensor, true: Tensor) -> float:
    """Largest absolute difference; infinite where one is not finite and the other differs."""
    difference = (got.double() - true.double()).abs()
    difference = torch.where(got.double() == true.double(), 0.0, difference)  # equal infinities
    difference = torch.where(got.isnan() & true.isnan(), 0.0, difference)
    return float(difference.nan_to_num(nan=float("inf")).max()) if difference.numel() else 0.0


def check(compiled: Result, eager: Result, exact: Result, dtype: torch.dtype = torch.float32) -> None:
    """Asserts that the compiled run is as close to float64 as eager's, naming every tensor that is not."""
    found = errors(compiled, eager, exact, dtype)
    bad = [e for e in found if not e.ok]
    assert not bad, "\n".join(f"{e.name}: error {e.compiled:.3g}, eager's {e.eager:.3g}, allowed {e.allowed:.3g}" for e in bad)
    if dtype == torch.bfloat16 and len(found) >= ENOUGH_TENSORS:
        assert typical_ratio(found) <= TYPICAL_RATIO, f"over all tensors {typical_ratio(found):.2f} times as far from float64 as eager"
