"""PyTorch's own databases of ops, modules, optimizers, higher-order and custom ops, as cases that can be called.

A unit is one entry of a database at one dtype in one direction ("forward", "backward"), and has numbered cases, the samples of the
database. Samples are made after seeding, so that case number n of a unit is the same in every process.
"""

from __future__ import annotations

import copy
import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch.utils import _pytree as pytree

from tools._coverage.verdicts import DATABASES, DTYPES, Unit

UNDEFINED_VALUES = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Ops whose results hold no defined values: compared by shape and dtype alone."""

UP_TO_PHASE = frozenset({"svd", "linalg.svd", "linalg.eigh", "linalg.eig", "svd_lowrank", "pca_lowrank"})
"""Ops whose vectors have no defined sign or phase: the database's own processing of outputs takes it away, forward as well as backward."""

TIES = {"topk": 1, "kthvalue": 1, "mode": 0, "sort": 0, "argsort": 0}
"""Ops whose documentation leaves open which of several equal elements an index names, with the position of their dim among the arguments.
Indices are compared by the elements that they name, gradients by their sum along the dim."""

# The helper seeds inside of the function under test, which Dynamo does not trace; the judge seeds before each call instead.
invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


@dataclass
class Case:
    """`call(*args, **kwargs)` is what is compiled. `differentiate`: gradients of its results by its inputs that require grad are part
    of the results. `process` filters the results before they are compared or differentiated (e.g. the phase of singular vectors).
    `fold` is a dim along which gradients are summed before they are compared. `whole`: with fullgraph=True."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiate: bool = False
    process: Callable[[Any], Any] = lambda result: result
    values: bool = True
    rtol: float | None = None
    atol: float | None = None
    prepare: Callable[[], Callable[..., Any]] | None = None
    fold: int | None = None
    whole: bool = True

    def fresh(self) -> Callable[..., Any]:
        """The callable, with state of its own where it has state."""
        return self.call if self.prepare is None else self.prepare()


@functools.cache
def _database(kind: str) -> dict[str, Any]:
    if kind == "op":
        return {info.full_name if hasattr(info, "full_name") else info.name: info for info in invocations.op_db}
    if kind == "hop":
        from torch.testing._internal.hop_db import hop_db

        return {info.full_name: info for info in hop_db}
    if kind == "custom_op":
        from torch.testing._internal.custom_op_db import custom_op_db

        return {info.full_name: info for info in custom_op_db}
    if kind == "module":
        from torch.testing._internal.common_modules import module_db

        return {info.name: info for info in module_db}
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


def units(databases: tuple[str, ...] = DATABASES, dtypes: tuple[str, ...] = DTYPES) -> Iterator[Unit]:
    """Every unit, in the order of the databases."""
    for database in databases:
        for name, info in _database(database).items():
            if database == "optimizer":
                yield from (Unit(database, name, d, "forward") for d in dtypes if d == "float32")
                continue
            forward = info.supported_dtypes("cpu")
            backward = (
                forward if database == "module" else info.supported_backward_dtypes("cpu") & set(forward) if info.supports_autograd else ()
            )
            for dtype in dtypes:
                if getattr(torch, dtype) in forward:
                    yield Unit(database, name, dtype, "forward")
                if getattr(torch, dtype) in backward:
                    yield Unit(database, name, dtype, "backward")


def cases(unit: Unit) -> Iterator[Case]:
    """The cases of a unit, in their order."""
    info = _database(unit.database)[unit.name]
    dtype = getattr(torch, unit.dtype)
    _seed(unit)
    if unit.database == "module":
        yield from _module_cases(info, dtype, unit.direction == "backward")
    elif unit.database == "optimizer":
        yield from _optimizer_cases(info)
    else:
        yield from _op_cases(info, dtype, unit)


def _seed(unit: Unit) -> None:
    # One seed for all dtypes and directions, so that a case number means one sample of the op.
    torch.manual_seed(zlib.crc32(f"{unit.database}/{unit.name}".encode()))


def _tolerances(info: Any, dtype: torch.dtype) -> tuple[float | None, float | None]:
    """The widest rtol and atol among the overrides that the database itself states for this op, CPU and dtype."""
    from torch.testing._internal.common_device_type import toleranceOverride

    found = [
        override.d[dtype]
        for decorator in info.decorators
        for override in getattr(decorator, "decorators", [decorator])
        if isinstance(override, toleranceOverride) and dtype in override.d
        if getattr(decorator, "device_type", None) in (None, "cpu")
    ]
    if not found:
        return None, None
    return max(t.rtol for t in found), max(t.atol for t in found)


def _op_cases(info: Any, dtype: torch.dtype, unit: Unit) -> Iterator[Case]:
    backward = unit.direction == "backward"
    rtol, atol = _tolerances(info, dtype)
    for sample in info.sample_inputs("cpu", dtype, requires_grad=backward):
        yield Case(
            info.op,
            (sample.input, *sample.args),
            dict(sample.kwargs),
            backward,
            _named(sample, unit.name)
            if unit.name in TIES
            else sample.output_process_fn_grad
            if backward or unit.name in UP_TO_PHASE
            else lambda result: result,
            unit.name not in UNDEFINED_VALUES,
            rtol,
            atol,
            fold=0 if unit.name == "msort" else _dim(sample, unit.name) if unit.name in TIES and sample.input.ndim else None,
        )


def _dim(sample: Any, name: str) -> int:
    position = TIES[name]
    return int(sample.args[position] if len(sample.args) > position else sample.kwargs.get("dim", -1))


def _named(sample: Any, name: str) -> Callable[[Any], Any]:
    """(values, indices) of a selection along a dim -> (values, the elements that the indices name)."""
    dim = _dim(sample, name)

    def named(indices: torch.Tensor) -> torch.Tensor:
        dropped = indices.ndim < sample.input.ndim
        picked = sample.input.detach().gather(dim, indices.unsqueeze(dim) if dropped else indices)
        return picked.squeeze(dim) if dropped else picked

    def process(result: Any) -> Any:
        if sample.input.ndim == 0:
            return result
        return named(result) if isinstance(result, torch.Tensor) else (result[0], named(result[1]))

    return process


def _module_cases(info: Any, dtype: torch.dtype, backward: bool) -> Iterator[Case]:
    for training in (False, True) if info.train_and_eval_differ else (True,):
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=backward, training=training)
        for given in inputs:
            if given.forward_input is None:
                continue
            args, kwargs = given.constructor_input.args, given.constructor_input.kwargs
            module = info.module_cls(*args, **kwargs).to(dtype).train(training)
            if info.is_lazy:
                with torch.no_grad():
                    module(*given.forward_input.args, **given.forward_input.kwargs)
            prepare = functools.partial(copy.deepcopy, module)
            yield Case(module, tuple(given.forward_input.args), dict(given.forward_input.kwargs), backward, prepare=prepare)


def _optimizer_cases(info: Any) -> Iterator[Case]:
    for given in info.optim_inputs_func(device="cpu"):
        shapes = [(4, 3), (5,), ()] if info.optim_cls.__name__ != "Muon" else [(4, 3), (5, 6)]
        parameters = [torch.randn(shape) for shape in shapes]
        gradients = [[torch.randn(shape) for shape in shapes] for _ in range(3)]
        if info.only_supports_sparse_grads:
            parameters = parameters[:2]
            gradients = [[g.to_sparse() for g in step[:2]] for step in gradients]
        for foreach in (False, True) if "foreach" in info.supported_impls else (None,):
            options = {**given.kwargs, **({} if foreach is None else {"foreach": foreach})}
            if options.get("fused") or options.get("differentiable"):
                options.pop("foreach", None)
            prepare = functools.partial(_optimizer_step, info, options, parameters, gradients)
            # Muon orthogonalises in bfloat16, so its steps are as exact as that.
            rtol, atol = (1.6e-2, 1e-5) if info.optim_cls.__name__ == "Muon" else (None, None)
            # Optimizer.step has a graph break written into it; what comes after is compiled.
            yield Case(prepare(), (), {}, rtol=rtol, atol=atol, prepare=prepare, whole=False)


def _optimizer_step(info: Any, options: dict[str, Any], parameters: Any, gradients: Any) -> Callable[[], Any]:
    """A function that compiles to one optimizer step, and is called for three."""
    own = [torch.nn.Parameter(p.clone()) for p in parameters]
    optimizer = info.optim_cls(own, **pytree.tree_map_only(torch.Tensor, torch.clone, options))
    step = iter(gradients)

    def closure() -> torch.Tensor:
        return torch.stack([(p * p).sum() for p in own]).sum().detach()

    def load() -> None:
        for p, g in zip(own, next(step), strict=True):
            p.grad = g.clone()

    def run() -> None:
        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            optimizer.step()

    run.load, run.state, run.steps = load, lambda: [p.detach().clone() for p in own], len(gradients)  # type: ignore[attr-defined]
    return run
