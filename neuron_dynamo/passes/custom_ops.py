"""Ops for which the user registered a PyTorch decomposition: replaced by its trace, in each graph that is compiled."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

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
            expand(gm, node, _dense(str(node.target)), {op: decomposition.function})
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


def _dense(name: str) -> Any:
    """How PyTorch runs a mutable op as a function: on copies, which it returns besides the op's own results."""
    from torch._higher_order_ops import auto_functionalize

    return getattr(auto_functionalize, f"{name}_dense")
