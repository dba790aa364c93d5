"""Key of a Program: an exact description of the FX graph that goes into lowering, and of what lowers it.

The description has positions where the graph has names, and content where it refers to objects, so equal computations have equal
descriptions in any process, file and checkout. A graph that cannot be described to the last bit has no key and is lowered each time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import operator
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from neuron_dynamo import custom
from neuron_dynamo.cache.key import FORMAT, CacheKey
from neuron_dynamo.cache.toolchain import lowering_versions, package_digest
from neuron_dynamo.lowering.program import DTYPE_NAMES, STABLEHLO_VERSION
from neuron_dynamo.lowering.regions import COMPOSITE, REGIONS, composite
from neuron_dynamo.target import Target

_NAMED = (torch.dtype, torch.layout, torch.memory_format)
_ROOMS = frozenset({"operator", "_operator", "torch", "neuron_dynamo"})


class NoKeyError(Exception):
    """A graph holds something that has no exact description; the text says what."""


def graph_key(description: str, target: Target) -> CacheKey:
    """Key of the Program that a graph with `description` is lowered to for `target`."""
    return CacheKey(
        (
            ("kind", "program"),
            ("graph", hashlib.sha256(description.encode()).hexdigest()),
            ("target", target.name),
            ("lnc", str(target.lnc)),
            ("target_properties", _properties(target)),
            ("package", package_digest()),
            *lowering_versions(),
            ("stablehlo", STABLEHLO_VERSION),
            ("format", str(FORMAT)),
        )
    )


def describe_graph(graph: Graph, aliases: Sequence[tuple[int, int]] = ()) -> str:
    """One line a node, in order: all that lowering reads of `graph`, whose output is a tuple of nodes. Raises NoKeyError.

    Strides are left out: a Program takes and makes dense tensors, whatever lies outside of it.
    """
    lines = _Describer().lines(graph)
    return "\n".join([*lines, f"aliases {list(aliases)}", ""])


class _Describer:
    """Describes one graph, and each sub-graph by another of its kind."""

    def __init__(self, indent: str = "") -> None:
        self._numbers: dict[Node, int] = {}
        self._indent = indent

    def lines(self, graph: Graph) -> list[str]:
        lines: list[str] = []
        for number, node in enumerate(graph.nodes):
            lines.append(f"{self._indent}%{number} = {self._node(node)}")
            lines.extend(self._regions(node))
            self._numbers[node] = number
        return lines

    def _node(self, node: Node) -> str:
        if node.op == "placeholder":
            return f"input : {_spec(node.meta.get('val'))}"
        if node.op == "output":
            return f"output {self._value(node.args[0])}"
        if node.op == "get_attr":
            return _attribute(node)
        if node.op != "call_function":
            raise NoKeyError(f"a node of kind {node.op}")
        named = "".join(f", {name}={self._value(node.kwargs[name])}" for name in sorted(node.kwargs))
        args = ", ".join([self._value(value) for value in node.args])
        return f"{target_name(node.target)}({args}{named}) : {_spec(node.meta.get('val'))}"

    def _regions(self, node: Node) -> list[str]:
        """The sub-graphs of a higher-order op, in the order of the arguments that stand for them; the decomposition of a composite."""
        lines: list[str] = []
        if node.target is composite:
            whole = node.meta[COMPOSITE]
            lines.append(f"{self._indent}  composite {whole.name} {sorted(whole.attributes.items())!r}")
            lines.extend(_Describer(self._indent + "    ").lines(whole.graph))
        for source in node.all_input_nodes if node.op == "call_function" else ():
            if source.op != "get_attr" or not isinstance(_owned(source), torch.nn.Module):
                continue
            region = node.meta.get(REGIONS, {}).get(source.target)
            if not isinstance(region, GraphModule):
                raise NoKeyError(f"a sub-graph of {node.target} that was not traced for lowering")
            lines.append(f"{self._indent}  region %{self._numbers[source]}")
            lines.extend(_Describer(self._indent + "    ").lines(region.graph))
        return lines

    def _value(self, value: Any) -> str:
        kind = type(value)
        if kind is Node:
            return f"%{self._numbers[value]}"
        if value is None or kind in (bool, int, float, str) or value is ...:
            return repr(value)
        if isinstance(value, (list, tuple)):
            # FX's own lists are subclasses; a named tuple may mean anything.
            if kind.__module__ not in ("builtins", "torch", "torch.fx.immutable_collections"):
                raise NoKeyError(f"an argument of type {kind.__name__}")
            inner = ", ".join([self._value(item) for item in value])
            return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
        if isinstance(value, dict):
            if kind.__module__ not in ("builtins", "torch.fx.immutable_collections"):
                raise NoKeyError(f"an argument of type {kind.__name__}")
            return "{" + ", ".join([f"{self._value(k)}: {self._value(v)}" for k, v in value.items()]) + "}"
        if kind is slice:
            return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
        if kind is complex:
            return f"complex({value.real!r}, {value.imag!r})"
        if kind in _NAMED:
            return str(value)
        if kind is torch.device:
            return f"device {value.type}"  # which of several devices takes no part in the code
        raise NoKeyError(f"an argument of type {kind.__name__}")


def target_name(target: Any) -> str:
    """Qualified name of a call's target, with its overload. Raises NoKeyError for a function that no name leads to."""
    if isinstance(target, torch._ops.OpOverload):
        if custom.place_of_rule(target):
            raise NoKeyError(f"op {target} with a rule of the user's, whose result may depend on what its code reads")
        return f"{target._schema.name}.{target._overloadname}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher-order {target._name}"
    module, name = getattr(target, "__module__", None) or "", getattr(target, "__qualname__", "")
    if module.partition(".")[0] in _ROOMS and module in sys.modules:
        try:
            if operator.attrgetter(name)(sys.modules[module]) is target:
                return f"{module}.{name}"
        except AttributeError:
            pass
    raise NoKeyError(f"a call of {name or type(target).__name__}")


def _spec(value: Any) -> str:
    """Shape and dtype of what a node makes."""
    if isinstance(value, torch.Tensor):
        shape = list(value.shape)
        if value.layout != torch.strided or not all(type(n) is int for n in shape):
            raise NoKeyError("a tensor without a static, dense shape")
        return f"{DTYPE_NAMES.get(value.dtype, value.dtype)}{shape}"
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join([_spec(item) for item in value])},)"
    raise NoKeyError(f"a value of type {type(value).__name__}")


def _owned(node: Node) -> Any:
    return operator.attrgetter(str(node.target))(node.graph.owning_module)


def _attribute(node: Node) -> str:
    """A literal by its content; a sub-graph is described where it is used."""
    value = _owned(node)
    if isinstance(value, torch.nn.Module):
        return "sub-graph"
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.device.type != "cpu":
        raise NoKeyError(f"a constant of type {type(value).__name__}")
    with _disable_current_modes():  # AOTAutograd compiles under a fake mode; the literal's values are real
        dense = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        content = hashlib.sha256(memoryview(dense.view(torch.uint8).numpy())).hexdigest()
    return f"literal {_spec(value)} {content}"


def _properties(target: Target) -> str:
    rest = {f.name: getattr(target, f.name) for f in dataclasses.fields(target) if f.name not in ("name", "lnc")}
    shown = {name: sorted(map(str, value)) if isinstance(value, frozenset) else value for name, value in rest.items()}
    return "; ".join(f"{name}={value}" for name, value in sorted(shown.items()))
