"""PyTorch's own databases of higher-order ops and of custom ops: every float32 sample, forward and backward, against eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree

from neuron_dynamo import report

REFUSED = {
    "inline_asm_elementwise": "only supports CUDA tensors",
    "local_map_hop": "Unexpected type in sourceless builder",
    "register_hook": "unsupported HigherOrderOperator",
}
"""What PyTorch itself refuses to compile on a CPU, whatever the backend. Of flex_attention, it refuses the gradient alone."""

ON_THE_HOST = {"auto_functionalize", "while_loop_stack_output"}
"""The higher-order ops of the database that are not native: a custom op without a rule, and one whose results have as many rows as
the data says."""

LONG = ("map-triple_nested-forward", "map-triple_nested-backward", "map-nested-forward")
"""What map-nested-backward shows too, whose graphs hold the forward: for the sweep."""


def _case(info: Any, backward: bool) -> Any:
    name = f"{info.name}-{info.variant_test_name}-{'backward' if backward else 'forward'}"
    return pytest.param(info, backward, id=name, marks=[pytest.mark.sweep] if name in LONG else [])


CASES = [
    _case(info, backward)
    for info in (*hop_db, *custom_op_db)
    for backward in (False, True)
    if not backward or (info.supports_autograd and info.name not in (*REFUSED, "flex_attention"))
]


@pytest.fixture(autouse=True)
def _whole_graphs() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _run(function: Callable[..., Any], sample: Any) -> list[Any]:
    """Results, gradients, and the arguments afterwards."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    leaves = [leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    first, args, kwargs = pytree.tree_unflatten(leaves, spec)
    results = [r for r in pytree.tree_leaves(function(first, *args, **kwargs)) if isinstance(r, (torch.Tensor, int))]
    roots = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    wanted = [t for t in tensors if t.requires_grad]
    gradients = torch.autograd.grad(roots, wanted, [torch.cos(r.detach()) for r in roots], allow_unused=True) if roots and wanted else ()
    return [*results, *gradients, *tensors]


@pytest.mark.parametrize(("info", "backward"), CASES)
def test_database(info: Any, backward: bool) -> None:
    function = lambda *args, **kwargs: info.op(*args, **kwargs)  # noqa: E731 - a function of its own for each case
    torch.manual_seed(0)
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=backward):
        compiled = torch.compile(function, backend="neuron", fullgraph=True)
        if info.name in REFUSED:
            for backend in ("neuron", "aot_eager"):
                torch._dynamo.reset()
                with pytest.raises(Exception, match=REFUSED[info.name]):
                    _run(torch.compile(function, backend=backend, fullgraph=True), sample)
            continue
        expected = _run(function, sample)
        torch._dynamo.reset()
        torch.testing.assert_close(_run(compiled, sample), expected)
    if info in hop_db and info.name not in REFUSED:
        host = {op.name for graph in report.reports() for op in graph.ops if op.placement == "host"}
        assert bool(host - {"aten.copy_.default"}) == (info.name in ON_THE_HOST)
