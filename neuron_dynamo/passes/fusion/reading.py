"""What patterns ask of FX nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
COPIES = (aten.clone.default, aten.alias.default, aten.detach.default)


def calls(node: Any, *targets: Any) -> bool:
    """Whether `node` calls one of `targets`."""
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def is_cast(node: Any) -> bool:
    """Whether `node` only changes the dtype."""
    if not calls(node, *CASTS):
        return False
    return calls(node, CASTS[1]) or set(node.kwargs) <= {"dtype", "layout", "device", "pin_memory"}


def before_casts(node: Any) -> tuple[Any, tuple[Node, ...]]:
    """(what is cast, the casts on the way) going up from `node`."""
    way: list[Node] = []
    while is_cast(node):
        way.append(node)
        node = node.args[0]
    return node, tuple(way)


def only_user(node: Node) -> Node | None:
    """The one user of `node`, or None."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def other(node: Node, operand: Node) -> Any:
    """The other operand of a binary op, or None where `operand` is neither or both."""
    if len(node.args) < 2:
        return None
    left, right = node.args[:2]
    if (left is operand) == (right is operand):
        return None
    return right if left is operand else left


def after(node: Node, targets: Iterable[Any]) -> Node | None:
    """The only user of `node` if it calls one of `targets`."""
    user = only_user(node)
    return user if user is not None and calls(user, *targets) else None


def is_last_dim(dims: Any, rank: int) -> bool:
    """Whether `dims` names the last dim alone."""
    dims = [dims] if isinstance(dims, int) else list(dims or ())
    return len(dims) == 1 and dims[0] in (-1, rank - 1)
