"""inspect: what would become of a model, without running it and without memory for its tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeCopyMode, FakeTensorMode
from torch.utils import _pytree as pytree

from neuron_dynamo.collecting import collect, fake_mode
from neuron_dynamo.errors import InspectError
from neuron_dynamo.report import GraphReport


@dataclass(frozen=True)
class Report:
    """Answer of `inspect`: one GraphReport a graph, in the order in which they were compiled."""

    graphs: list[GraphReport] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{g.name}: {g.kind}, {g.native} ops native, {g.host} on the host, cache {g.cache}" for g in self.graphs]
        return "\n".join(rows) or "no graphs"


def inspect(model: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> Report:
    """Lower every graph that `torch.compile(model, backend="neuron", options=options)(*args, **kwargs)` would compile.

    Neither runs the model nor its compiler: parameters and tensor arguments (real or fake) are replaced by fake tensors of their
    shape. The cache is only asked whether it has each program. Backward graphs are included where a parameter or an input requires
    grad and grad mode is on. Raises InspectError where the model
    depends on the data, and what compiling would raise (UnsupportedOpError under fallback="error", OptionError ...).
    """
    from neuron_dynamo.backend import neuron
    from neuron_dynamo.options import Options

    Options.resolve(options)
    mode = fake_mode((args, kwargs, list(model.parameters()) if isinstance(model, torch.nn.Module) else []))
    if isinstance(model, torch.nn.Module):
        with FakeCopyMode(mode):
            model = copy.deepcopy(model)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: _fake(mode, t), (args, kwargs))

    def backend(gm: torch.fx.GraphModule, inputs: list[Any], **given: Any) -> Any:
        # A function of its own for each call: Dynamo must not reuse what another backend compiled.
        return neuron(gm, inputs, **given)

    try:
        with collect() as graphs, torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
            torch.compile(model, backend=backend, options=dict(options) if options else None)(*args, **kwargs)
    except torch._dynamo.exc.BackendCompilerFailed as failure:
        raise failure.inner_exception from None
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise InspectError(
            f"the model reads the value of a tensor, which an inspection does not have: {error}",
            remedy="compile and run it, and read neuron_dynamo.reports()",
        ) from error
    return Report(graphs)


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if isinstance(tensor, torch._subclasses.FakeTensor) else mode.from_tensor(tensor, static_shapes=True)
