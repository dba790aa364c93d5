"""Ops for which the user registered a PyTorch decomposition: replaced by its trace, in each graph that is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from neuron_dynamo import custom
from neuron_dynamo.errors import RuleError
from neuron_dynamo.lowering.describe import describe
from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.passes.expand import NotStaticError, expand


def decomposition_of(node: Node) -> custom.Decomposition | None:
    """The decomposition that the user registered for the op of a node, or for the mutable op that it calls on copies."""
    return custom.decomposition(_op(node))


def expand_custom(gm: GraphModule, node: Node) -> None:
    """Replace `node` in place. Raises RuleError where the decomposition raises, or returns another shape or dtype than the op does."""
    op = _op(node)
    decomposition = custom.decomposition(op)
    assert decomposition is not None
    try:
        if op is node.target:
            expand(gm, node, decomposition.function)
        else:
            expand(gm, node, _dense(node, op), {op: decomposition.function})
    except NotStaticError:
        return  # the host runs it
    except Exception as error:
        raise RuleError(
            f"{decomposition.place}: {type(error).__name__}: {error}",
            op=describe(node, str(op)),
            source=source_of(node),
            remedy="make the decomposition return what the op and its fake implementation return",
        ) from error


def _op(node: Node) -> Any:
    return node.args[0] if str(node.target) in ("auto_functionalized", "auto_functionalized_v2") else node.target


def _dense(node: Node, op: Any) -> Any:
    """How a mutable op runs as a function: on copies, which it returns besides the op's own results."""
    from torch._higher_order_ops import auto_functionalize

    kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: n.meta["val"])
    views = [view for view in pytree.tree_leaves(_written(op, kwargs)) if view is not None]
    if views and _apart([(view.base_index, view.regenerate_view(kwargs["_all_bases"])) for view in views]):
        return _on_copies
    return getattr(auto_functionalize, f"{node.target}_dense")


def _written(op: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Argument name -> which view of which base it is, or several, for the arguments that an op in auto_functionalized_v2 writes."""
    from torch._higher_order_ops import auto_functionalize

    if not kwargs.get("_all_bases"):  # an out= op, or none of its arguments is given
        return {}
    names, types = auto_functionalize.get_mutable_args_from_schema(op._schema)
    taken = dict(kwargs)
    views: dict[str, Any] = auto_functionalize.read_view_information_from_args(names, types, taken, taken.pop("_all_bases"))
    return views


def _apart(views: Sequence[tuple[int, torch.Tensor]]) -> bool:
    """Whether no two views of one base have elements within the same stretch of its memory. False where sizes are not numbers."""
    if not all(isinstance(n, int) for _, v in views for n in (*v.shape, *v.stride(), v.storage_offset())):
        return False
    stretches = []
    for base, v in views:
        first = v.storage_offset()
        stretches.append((base, first, first + sum((n - 1) * stride for n, stride in zip(v.shape, v.stride(), strict=True))))
    return all(one[0] != other[0] or one[2] < other[1] for one, other in itertools.pairwise(sorted(stretches)))


def _on_copies(op: Any, _only_clone_these_bases: Any = None, *, _all_bases: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
    """As PyTorch's auto_functionalized_v2_dense where no two written arguments share elements. The op gets a copy of each view,
    which then stands in the base's place: writes through a view by strides are beyond what PyTorch functionalises."""
    views = _written(op, {"_all_bases": _all_bases, **kwargs})
    copies = pytree.tree_map(lambda view: None if view is None else view.regenerate_view(_all_bases).clone(), views)
    given = {name: value for name, value in kwargs.items() if name in {a.name for a in op._schema.arguments}}
    out = op(**{**given, **copies})
    bases = list(_all_bases)
    for view, copy in zip(pytree.tree_leaves(views), pytree.tree_leaves(copies), strict=True):
        if view is not None:
            bases[view.base_index] = _put(bases[view.base_index], view, copy)
    return (*(out if isinstance(out, tuple) else (out,)), *bases)


def _put(base: torch.Tensor, view: Any, value: torch.Tensor) -> torch.Tensor:
    """The base with `value` where it has the view."""
    from torch._higher_order_ops.auto_functionalize import AsStridedViewInfo, SliceViewInfo

    if isinstance(view, AsStridedViewInfo):
        return torch.as_strided_scatter(base, value, view.size, view.stride, view.storage_offset)
    if isinstance(view, SliceViewInfo):
        return torch.slice_scatter(base, value, int(view.dim), view.start, view.end)
    return value
