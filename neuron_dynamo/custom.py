"""Custom ops, made native: rules that users register for ops of torch.library, either in StableHLO or in PyTorch.

An op without either runs on the host. Register before the first call of a compiled function: graphs compiled before keep what they have.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._library.custom_ops import CustomOpDef

from neuron_dynamo.errors import RuleError
from neuron_dynamo.lowering import registry

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Decomposition:
    """A function over PyTorch ops that stands for an op, and where it was written."""

    function: Callable[..., Any]
    place: str


_decompositions: dict[Any, Decomposition] = {}
_places: dict[Any, str] = {}
_lock = threading.Lock()


def register_lowering(op: Any, *, guard: registry.Guard | None = None) -> Callable[[FunctionT], FunctionT]:
    """Decorator: lower `op` by `rule(b, *args, **kwargs)`, which emits StableHLO through the Builder `b`.

    `op` is torch.ops.ns.op, one of its overloads, the result of @torch.library.custom_op, or "ns::op" or "ns::op.overload". The rule gets
    all arguments of the op's schema, defaults filled in, with a Value for each tensor; it returns a Value, or a tuple of them for an op
    with several results, of the shapes and dtypes `b.outs`. `guard(*args, **kwargs)` sees fake tensors instead and returns why this use
    must run on the host, or None. Raises RuleError for what is no op, an op that writes into its arguments, or one that has a rule.
    """
    found = _resolve(op)
    if found._schema.is_mutable:
        raise RuleError(
            "a lowering rule is a function of values, and this op writes into its arguments",
            op=str(found),
            remedy="use register_decomposition, whose function may write into its arguments as the op does",
        )

    def register(rule: FunctionT) -> FunctionT:
        def bound(b: Any, *args: Any, **kwargs: Any) -> Any:
            positional, named = _all_arguments(found, args, kwargs)
            return rule(b, *positional, **named)

        def bound_guard(*args: Any, **kwargs: Any) -> str | None:
            positional, named = _all_arguments(found, args, kwargs)
            return guard(*positional, **named) if guard is not None else None

        with _lock:
            _claim(found)
            registry.registered()[found] = registry.Entry(bound, bound_guard if guard is not None else None)
            _places[found] = _place("lowering rule", rule)
        return rule

    return register


def register_decomposition(op: Any) -> Callable[[FunctionT], FunctionT]:
    """Decorator: compute `op` by a function over PyTorch ops, which is called as the op is and lowered as any other code.

    `op` as for register_lowering. The function may write into arguments that the op's schema says it writes into. Gradients are not
    taken of it: the op's own autograd formula holds. Raises RuleError for what is no op or has a rule.
    """
    found = _resolve(op)

    def register(function: FunctionT) -> FunctionT:
        with _lock:
            _claim(found)
            _decompositions[found] = Decomposition(function, _place("decomposition", function))
        return function

    return register


def unregister(op: Any) -> None:
    """Forget what register_lowering or register_decomposition was told of `op`; nothing happens where that is nothing."""
    found = _resolve(op)
    with _lock:
        _decompositions.pop(found, None)
        if _places.pop(found, None) is not None:
            del registry.registered()[found]


def decomposition(op: Any) -> Decomposition | None:
    """The decomposition registered for an overload."""
    return _decompositions.get(op) if isinstance(op, torch._ops.OpOverload) else None


def place_of_rule(op: Any) -> str:
    """Where the lowering rule that a user registered for an overload was written; "" for any other op."""
    return _places.get(op, "")


def taken() -> frozenset[Any]:
    """Overloads with a rule or a decomposition of the user's: they must reach our passes whole, and what their code reads is not known."""
    return frozenset((*_decompositions, *_places))


def _resolve(op: Any) -> torch._ops.OpOverload:
    given = op
    if isinstance(op, CustomOpDef):
        op = op._opoverload
    if isinstance(op, str):
        namespace, separator, name = op.partition("::")
        name, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops, namespace), name, None) if separator else None
        if op is not None and overload:
            op = getattr(op, overload, None)
    if isinstance(op, torch._ops.OpOverloadPacket):
        overloads: list[str] = op.overloads()  # type: ignore[no-untyped-call]
        op = getattr(op, "default" if "default" in overloads else overloads[0]) if "default" in overloads or len(overloads) == 1 else None
    if not isinstance(op, torch._ops.OpOverload):
        raise RuleError(
            f"{given!r} names no single op",
            remedy="give torch.ops.ns.op.overload, the result of @torch.library.custom_op, or 'ns::op', of an op that is defined by now",
        )
    return op


def _claim(op: torch._ops.OpOverload) -> None:
    if op in _decompositions or registry.find(op) is not None:
        raise RuleError(
            "it has a lowering rule or a decomposition already", op=str(op), remedy="neuron_dynamo.custom.unregister removes yours"
        )


def _all_arguments(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for number, argument in enumerate(op._schema.arguments):
        value = args[number] if number < len(args) else kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


def _place(what: str, function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{what} {name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else f"{what} {name}"
