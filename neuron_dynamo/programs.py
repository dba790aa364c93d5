"""FX graph -> Program: out of the cache where the same graph was lowered before, else through the lowering."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph

from neuron_dynamo.cache import Artifact, Cache, CacheKey
from neuron_dynamo.cache.counters import count
from neuron_dynamo.cache.explain import GRAPH
from neuron_dynamo.cache.graph_key import NoKeyError, describe_graph, graph_key
from neuron_dynamo.lowering.program import OpSource, Program, Signature, TensorSpec
from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.options import Options

SOURCES = "sources.json"
"""Blob of a program entry: (index of a StableHLO op, its name, position of the FX node behind it)."""

Aliases = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Lowered:
    """A Program, and how it came to be: the cache level that had it, or `miss` if it was lowered, with its key if the graph has one.

    `graph` is the description that the key was made from, or tells why the graph has none.
    """

    program: Program
    level: str
    key: CacheKey | None
    graph: str = ""


def obtain_program(graph: Graph, aliases: Aliases, options: Options, name: str = "", keep: bool = True) -> Lowered:
    """The Program of a graph of static shapes whose output is a tuple of tensor nodes; `name` is the graph's in reports.

    A miss is no error in any mode of the cache. Without `keep`, what was lowered is not stored. Raises LoweringError.
    """
    try:
        description = describe_graph(graph, aliases)
    except NoKeyError as reason:
        count("program_unkeyed")
        return Lowered(_lower(graph, aliases, options), "miss", None, f"no key: it has {reason}")
    key = graph_key(description, options.resolved_target)
    if options.cache == "off":
        return Lowered(_lower(graph, aliases, options), "miss", key, description)
    cache = Cache(options if options.cache != "require" else replace(options, cache="readonly"))
    level, artifact = _look_up(cache, key, name) if keep else (cache.level(key), cache.peek(key))
    if artifact is not None and level != "miss":
        program = _read(artifact, graph, aliases)
        if program is not None:
            return Lowered(program, level, key, description)
        if keep:
            cache.reject(key, "its Program does not fit the graph")
    program = _lower(graph, aliases, options)
    if keep:
        blobs = {GRAPH: description.encode(), SOURCES: json.dumps(_rows(program, graph)).encode()}
        cache.put(key, Artifact(program.stablehlo, program.signature, blobs=blobs))
    return Lowered(program, "miss", key, description)


def _look_up(cache: Cache, key: CacheKey, name: str) -> tuple[str, Artifact | None]:
    found = cache.lookup(key, name)
    return found.level, found.artifact


def _lower(graph: Graph, aliases: Aliases, options: Options) -> Program:
    from neuron_dynamo.lowering.pipeline import lower

    count("lowerings")
    return lower(graph, options.resolved_target, aliases)


def _read(artifact: Artifact, graph: Graph, aliases: Aliases) -> Program | None:
    """The Program of an entry, its side table with the lines of `graph`; None if the entry cannot be of this graph."""
    nodes = list(graph.nodes)
    inputs = tuple(_spec(node.meta["val"]) for node in nodes if node.op == "placeholder")
    outputs = tuple(_spec(node.meta["val"]) for node in nodes[-1].args[0])
    if artifact.signature != Signature(inputs, outputs, tuple(aliases)):
        return None
    try:
        rows = [(int(index), str(op), nodes[position]) for index, op, position in json.loads(artifact.blobs[SOURCES])]
    except (ValueError, LookupError, TypeError):
        return None
    sources = tuple(OpSource(index, op, node.name, str(node.target), source_of(node)) for index, op, node in rows)
    return Program(artifact.payload, artifact.signature, sources)


def _rows(program: Program, graph: Graph) -> list[list[Any]]:
    positions = {node.name: position for position, node in enumerate(graph.nodes)}
    return [[row.index, row.op, positions[row.fx_node]] for row in program.sources]


def _spec(value: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(int(n) for n in value.shape), value.dtype)
