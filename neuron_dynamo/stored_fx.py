"""A symbolic FX graph as JSON and back, so that a new process can specialise it without another AOTAutograd trace. Never pickle."""

from __future__ import annotations

import base64
import math
import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.runtime.encoding import decode, decode_target, encode, encode_target
from neuron_dynamo.runtime.graph import Slot

MAX_CONSTANT = 2**20
"""Bytes of one tensor constant beyond which a graph is not described: PyTorch keeps the description in memory."""

_ROOMS = {"operator": operator, "math": math, "torch": torch}
_SIZES_FROM_DATA = "unbacked_bindings"


def describe(gm: GraphModule) -> list[dict[str, Any]]:
    """One JSON-able record a node. Values in `meta` are left out, for they are propagated anew for each shape.

    Raises ValueError for a node that has no description: a higher-order op, a call of the user's, a large constant.
    """
    numbers: dict[Node, int] = {}
    records = []

    def slot(value: Any) -> Any:
        return Slot(numbers[value]) if isinstance(value, Node) else value

    for number, node in enumerate(gm.graph.nodes):
        numbers[node] = number
        record: dict[str, Any] = {"op": node.op, "name": node.name}
        if node.op == "get_attr":
            record["constant"] = encode_tensor(operator.attrgetter(str(node.target))(gm))
        elif node.op in ("call_function", "output"):
            args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), slot)
            record |= {"args": encode(args), "kwargs": encode(kwargs)}
        elif node.op != "placeholder":
            raise ValueError(f"a node of kind {node.op} cannot be stored")
        if node.op == "call_function":
            record["target"] = _target_name(node.target)
            record["source"] = _source(node)
            if node.meta.get(_SIZES_FROM_DATA):
                record["sizes_from_data"] = True
        records.append(record)
    return records


def rebuild(records: list[dict[str, Any]]) -> GraphModule:
    """Inverse of `describe`. Raises ValueError where this process lacks an op."""
    root = torch.nn.Module()
    graph = Graph()
    nodes: list[Node] = []

    def link(value: Any) -> Any:
        if isinstance(value, Slot):
            return nodes[value.index]
        if isinstance(value, dict):
            return {name: link(item) for name, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)([link(item) for item in value])
        if isinstance(value, slice):
            return slice(link(value.start), link(value.stop), link(value.step))
        return value

    for record in records:
        name = record["name"]
        if record["op"] == "placeholder":
            node = graph.placeholder(name)
        elif record["op"] == "get_attr":
            root.register_buffer(name, decode_tensor(record["constant"]))
            node = graph.get_attr(name)
        elif record["op"] == "output":
            node = graph.output(link(decode(record["args"]))[0])
        else:
            target, args, kwargs = _target(record["target"]), link(decode(record["args"])), link(decode(record["kwargs"]))
            node = graph.create_node("call_function", target, args, kwargs, name)
            node.meta.update(_meta(record["source"]))
            if record.get("sizes_from_data"):
                node.meta[_SIZES_FROM_DATA] = True
        nodes.append(node)
    graph.lint()
    return GraphModule(root, graph)


def encode_tensor(tensor: Any) -> dict[str, Any]:
    """A small dense CPU tensor as JSON, bit for bit. Raises ValueError for anything else."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(f"a constant of type {type(tensor).__name__} cannot be stored")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.nbytes > MAX_CONSTANT:
        raise ValueError(f"a constant of {tensor.nbytes} bytes cannot be stored")
    with torch.utils._python_dispatch._disable_current_modes():
        dense = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return {
        "dtype": encode(tensor.dtype),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "data": base64.b64encode(data).decode(),
    }


def decode_tensor(data: dict[str, Any]) -> torch.Tensor:
    """Inverse of `encode_tensor`, with the strides that the tensor had."""
    content = bytearray(base64.b64decode(data["data"]))
    with torch.utils._python_dispatch._disable_current_modes():
        flat = (
            torch.frombuffer(content, dtype=torch.uint8).view(decode(data["dtype"]))
            if content
            else torch.empty(0, dtype=decode(data["dtype"]))
        )
        made = torch.empty_strided(data["shape"], data["stride"], dtype=flat.dtype)
        return made.copy_(flat.reshape(data["shape"]))


def _target_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return encode_target(target)
    for room, module in _ROOMS.items():
        name = getattr(target, "__name__", "")
        if name and getattr(module, name, None) is target:
            return f"{room}.{name}"
    return f"ours.{encode_target(target)}"


def _target(name: str) -> Any:
    if "::" in name:
        return decode_target(name)
    room, _, function = name.partition(".")
    return decode_target(function) if room == "ours" else getattr(_ROOMS[room], function)


def _source(node: Node) -> list[Any] | None:
    where = source_of(node)
    return [where.file, where.line, where.module, where.code] if where else None


def _meta(source: list[Any] | None) -> dict[str, Any]:
    """What `source_of` reads, of one frame and one module."""
    if source is None:
        return {}
    file, line, module, code = source
    meta: dict[str, Any] = {"stack_trace": f'  File "{file}", line {line}, in forward\n    {code}\n'}
    if module:
        meta["nn_module_stack"] = {module: (module, torch.nn.Module)}
    return meta
