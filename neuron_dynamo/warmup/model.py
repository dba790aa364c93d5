"""Collect the graphs of a model that a factory makes, without memory for its weights: everything is made of fake tensors.

`python -m neuron_dynamo.warmup.model` reads the job (jobs.Model as JSON) from standard input.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils import _pytree as pytree

from neuron_dynamo.errors import NeuronDynamoError, WarmupError
from neuron_dynamo.factory import call_factory, find
from neuron_dynamo.options import collect_folder
from neuron_dynamo.recording import Spool, record_to
from neuron_dynamo.warmup.jobs import InputShape, Model, Ranks

_FORM = (
    "give MODULE:FUNCTION; the function takes no argument and returns the model, (model, args) or (model, args, kwargs), "
    "and at the end, if it likes, an optimizer"
)


@dataclass
class Made:
    """What a factory made: a callable, the inputs of one call, and an optimizer of its parameters."""

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None


def collect_model(job: Model, spool: Spool) -> None:
    """Record every graph of `job`, for each of its ranks, modes and shapes, into `spool`.

    Raises WarmupError where the model depends on data or is called with inputs that it does not take, and what compiling raises.
    """
    for rank in job.ranks.each():
        with contextlib.ExitStack() as stack:
            label = spool.label
            if rank is not None:
                from neuron_dynamo.warmup.ranks import fake_group

                stack.enter_context(fake_group(rank, job.ranks.world_size))
                label = f"{label} rank {rank}"
            stack.enter_context(record_to(replace(spool, label=label, fake=True)))
            # Else only running a backward would compile it.
            stack.enter_context(torch._functorch.config.patch(force_non_lazy_backward_lowering=True))
            for mode in job.modes:
                torch._dynamo.reset()
                _collect_mode(job, mode)


def _collect_mode(job: Model, mode: str) -> None:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        made = unpack(call_factory(job.factory, _FORM), job.factory)
    options = dict(job.options) or None
    try:
        if mode == "optimizer":
            _collect_optimizer(job, made, fake, options)
            return
        if isinstance(made.model, torch.nn.Module):
            made.model.train(mode == "training")
        for shapes, first in job.variants():
            args, kwargs = inputs_for(made, shapes, first, fake)
            if not job.dynamic:
                torch._dynamo.reset()  # else the second shape would be taken for a symbolic size
            compiled = torch.compile(made.model, backend="neuron", options=options, dynamic=True if job.dynamic else None)
            with torch.set_grad_enabled(mode == "training"):
                outputs = compiled(*args, **kwargs)
                if job.dynamic:  # else the backward was compiled with the forward
                    _backward(outputs, fake)
    except torch._dynamo.exc.BackendCompilerFailed as failure:
        raise failure.inner_exception from None
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise WarmupError(
            f"{job.factory} reads the value of a tensor, which fake tensors do not have: {error}",
            remedy="warm it with a script that runs the model: neuron-dynamo warmup run script.py",
        ) from error


def _backward(outputs: Any, fake: FakeTensorMode) -> None:
    """A gradient for the loss, if the outputs have one, else for each output that can take one."""
    loss = getattr(outputs, "loss", None)
    leaves = pytree.tree_leaves(loss if isinstance(loss, torch.Tensor) else outputs)
    roots = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if roots:
        with fake:
            gradients = [torch.empty_like(root) for root in roots]
        torch.autograd.backward(roots, gradients)


def _collect_optimizer(job: Model, made: Made, fake: FakeTensorMode, options: dict[str, Any] | None) -> None:
    with fake:
        optimizer = made.optimizer
        if job.optimizer:
            parameters = made.model.parameters() if isinstance(made.model, torch.nn.Module) else ()
            kind = find(job.optimizer, "give MODULE:CLASS, such as torch.optim:AdamW")
            optimizer = kind(parameters, **job.optimizer_args)
        if optimizer is None:
            raise WarmupError(
                f"{job.factory} returns no optimizer", remedy="return one last, or give --optimizer torch.optim:AdamW:lr=1e-3"
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.empty_like(parameter)
    step = torch.compile(optimizer.step, backend="neuron", options=options)
    for _ in range(2):  # the first step makes the state, and may so be another graph than those to come
        step()


def unpack(made: Any, spec: str) -> Made:
    """Raises WarmupError for what is no model, (model, args) or (model, args, kwargs), with or without an optimizer at its end."""
    parts = list(made) if isinstance(made, tuple) else [made]
    optimizer = parts.pop() if len(parts) > 1 and isinstance(parts[-1], torch.optim.Optimizer) else None
    model, inputs = (parts[0] if parts else None), parts[1:]
    args: Any = ()
    kwargs: Any = {}
    match inputs:
        case []:
            pass
        case [Mapping() as kwargs]:
            pass
        case [torch.Tensor() as tensor]:
            args = (tensor,)
        case [tuple() | list() as args]:
            pass
        case [tuple() | list() as args, Mapping() as kwargs]:
            pass
        case _:
            model = None
    if not callable(model):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise WarmupError(f"{spec} returned ({kinds})", remedy=_FORM)
    return Made(model, tuple(args), dict(kwargs), optimizer)


def inputs_for(
    made: Made, shapes: Mapping[str, tuple[tuple[int, ...], str]], first: int | None, fake: FakeTensorMode
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Fake args and kwargs of one call: the factory's own, with the inputs that `shapes` names replaced or added.

    A dtype that is not given is that of the factory's input, else int64 for a parameter whose annotation says LongTensor, else float32.
    Raises WarmupError for a name that the model has no parameter for, or an unknown dtype.
    """
    parameters = _parameters(made.model)
    args, kwargs = list(made.args), dict(made.kwargs)
    names = [name for name, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    with fake:
        for name, (shape, dtype) in shapes.items():
            position = int(name) if name.isdigit() else names.index(name) if name in names else len(args)
            if not name.isdigit() and name not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                raise WarmupError(f"the model has no input {name!r}", remedy=f"it has {', '.join(parameters)}")
            if name.isdigit() and position > len(args):
                raise WarmupError(f"input {position} is given, but not input {len(args)}", remedy="give all inputs before it a shape")
            given = args[position] if position < len(args) else kwargs.get(name)
            tensor = torch.empty(shape, dtype=_dtype(dtype, given, parameters.get(name)))
            if position < len(args):
                args[position] = tensor
            elif name.isdigit():
                args.append(tensor)
            else:
                kwargs[name] = tensor
        if not args and not kwargs and parameters:
            raise WarmupError("the factory gives no inputs", remedy="return (model, args), or give --shape NAME=1x128")

        def converted(tensor: torch.Tensor) -> torch.Tensor:
            shape = (first, *tensor.shape[1:]) if first is not None and tensor.dim() else tuple(tensor.shape)
            if isinstance(tensor, torch._subclasses.FakeTensor) and shape == tuple(tensor.shape):
                return tensor
            return torch.empty(shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad)

        made_args, made_kwargs = pytree.tree_map_only(torch.Tensor, converted, (tuple(args), kwargs))
    return made_args, made_kwargs


def _parameters(model: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    function = model.forward if isinstance(model, torch.nn.Module) else model
    return dict(inspect.signature(function).parameters)


def _dtype(name: str, given: Any, parameter: inspect.Parameter | None) -> torch.dtype:
    if name:
        found = getattr(torch, name, None)
        if not isinstance(found, torch.dtype):
            raise WarmupError(f"{name!r} is no dtype", remedy="name one of torch's, such as float32, bfloat16, int64, bool")
        return found
    if isinstance(given, torch.Tensor):
        return given.dtype
    return torch.int64 if parameter is not None and "LongTensor" in str(parameter.annotation) else torch.float32


def job_from_json(data: dict[str, Any]) -> Model:
    """Inverse of dataclasses.asdict after a way through JSON."""
    shapes = tuple(InputShape(s["name"], tuple(s["dims"]), s["dtype"]) for s in data["shapes"])
    dims = tuple((name, tuple(values)) for name, values in data["dims"])
    ranks = Ranks(data["ranks"]["world_size"], tuple(data["ranks"]["ranks"]))
    lists = {"batch": tuple(data["batch"]), "modes": tuple(data["modes"])}
    return Model(**{**data, **lists, "shapes": shapes, "dims": dims, "ranks": ranks})


def main() -> int:
    asked = collect_folder()
    assert asked is not None
    folder, label = asked
    try:
        collect_model(job_from_json(json.load(sys.stdin)), Spool(folder, label))
    except NeuronDynamoError as error:
        Path(folder, "failure").write_text(str(error))
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
