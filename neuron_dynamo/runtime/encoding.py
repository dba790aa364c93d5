"""Host steps as JSON: targets by name, args with slots, dtypes and non-finite floats spelled out. Never pickle."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from neuron_dynamo.runtime import draw as draw  # registers the ops by whose name a stored graph refers to them
from neuron_dynamo.runtime import layout
from neuron_dynamo.runtime.graph import Slot

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "getitem": operator.getitem,
    "copy_to_strides": layout.copy_to_strides,
    "with_strides": layout.with_strides,
}
_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_TORCH_CONSTANTS = {
    str(value): value for value in vars(torch).values() if isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
}


def encode_target(target: Any) -> str:
    """The name of a host step's target. Raises ValueError for a function that has none."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target._schema.name}.{target._overloadname}"
    if target in _NAMES:
        return _NAMES[target]
    raise ValueError(f"{target} cannot be stored")


def decode_target(name: str) -> Callable[..., Any]:
    """Inverse of encode_target. Raises ValueError where this process lacks the op."""
    if "::" not in name:
        return _FUNCTIONS[name]
    namespace, rest = name.split("::")
    packet, overload = rest.rsplit(".", 1)
    try:
        found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError as error:
        raise ValueError(f"op {name} is not registered in this process") from error
    return found


def encode(value: Any) -> Any:
    """A nested argument as JSON. Raises ValueError for what has no place in it (modules, tensors, symbolic numbers)."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Slot):
        return {"slot": value.index}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, slice):
        return {"slice": [encode(v) for v in (value.start, value.stop, value.step)]}
    if isinstance(value, tuple):
        return {"tuple": [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {"dict": [[k, encode(v)] for k, v in value.items()]}
    raise ValueError(f"a value of type {type(value).__name__} cannot be stored")


def decode(data: Any) -> Any:
    """Inverse of encode."""
    if isinstance(data, list):
        return [decode(v) for v in data]
    if not isinstance(data, dict):
        return data
    ((kind, value),) = data.items()
    readers: dict[str, Callable[[Any], Any]] = {
        "float": float,
        "slot": Slot,
        "complex": lambda v: complex(decode(v[0]), decode(v[1])),
        "torch": _TORCH_CONSTANTS.__getitem__,
        "device": torch.device,
        "slice": lambda v: slice(*map(decode, v)),
        "tuple": lambda v: tuple(map(decode, v)),
        "dict": lambda v: {k: decode(item) for k, item in v},
    }
    return readers[kind](value)
