"""Nested compile regions are put inline before AOTAutograd, in sub-graphs and in one another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from neuron_dynamo.passes.inline import inline_regions


def _called(gm: GraphModule) -> set[str]:
    return {
        str(n.target) for module in gm.modules() if isinstance(module, GraphModule) for n in module.graph.nodes if n.op == "call_function"
    }


def test_regions_within_regions_and_branches() -> None:
    @torch.compiler.nested_compile_region
    def inner(x: Tensor) -> Any:
        return x.sin(), x * 3

    @torch.compiler.nested_compile_region
    def outer(x: Tensor, y: Tensor) -> Tensor:
        a, b = inner(x + y)
        return a * b

    def f(x: Tensor, y: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x, y: outer(x, y), lambda x, y: x.cos(), (outer(x, y), outer(y, x)))

    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        assert "invoke_subgraph" in _called(gm)
        inline_regions(gm)
        assert not any(str(n.target) == "invoke_subgraph" for n in gm.graph.nodes)
        sines = [n for n in gm.graph.nodes if n.target == "sin"]
        assert len(sines) == 2 and all("return x.sin(), x * 3" in n.meta["stack_trace"] for n in sines)
        return gm

    for x in (torch.rand(4), -torch.rand(4)):
        y = torch.rand(4)
        actual = torch.compile(f, backend=backend, fullgraph=True)(x, y)
        a, b = ((t.sin() * t * 3) for t in (x + y, y + x))
        torch.testing.assert_close(actual, (a + b).sin() * (a + b) * 3 if x.sum() > 0 else a.cos())
    branches = [n.target for n in graphs[0].graph.nodes if n.op == "get_attr"]
    assert branches and not any(
        str(n.target) == "invoke_subgraph" for name in branches for n in graphs[0].get_submodule(str(name)).graph.nodes
    )
