"""The story of one graph: passes -> partition -> lower -> cache -> compiler -> runtime."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from neuron_dynamo import passes, report
from neuron_dynamo.cache import PROGRAM, Artifact, Cache, CacheKey, program_key
from neuron_dynamo.cache.counters import count
from neuron_dynamo.cache.failures import remembering
from neuron_dynamo.cache.loading import load
from neuron_dynamo.collecting import collecting, fake_mode
from neuron_dynamo.compilers import compiler_for
from neuron_dynamo.compilers.base import Compiled
from neuron_dynamo.dump import dump
from neuron_dynamo.errors import CompilerMissingError
from neuron_dynamo.fallback import check_placement
from neuron_dynamo.logs import announce
from neuron_dynamo.lowering.program import Program
from neuron_dynamo.options import Options
from neuron_dynamo.passes.complex_pairs import complex_pairs
from neuron_dynamo.passes.fusion import fuse
from neuron_dynamo.passes.higher_order import higher_order
from neuron_dynamo.passes.numbers import numbers
from neuron_dynamo.passes.partition import Segment, crossing, extract, partition
from neuron_dynamo.passes.precision import precision
from neuron_dynamo.placement import Placement, place, whole_graph_on_host
from neuron_dynamo.programs import Lowered, obtain_program
from neuron_dynamo.recording import NotCompiled, Standin, eagerly, recording
from neuron_dynamo.report import GraphReport, ProgramReport
from neuron_dynamo.runtime.base import Executable
from neuron_dynamo.runtime.graph import CompiledGraph, Constant, HostStep, NativeStep, Slot, Step
from neuron_dynamo.stored import StoredGraph

Sources = list[Node]
Results = list[Node]


def compile_graph(gm: GraphModule, kind: str, options: Options, visible: int) -> Callable[[list[Any]], Any]:
    """Compile a graph of static shapes as AOTAutograd hands it over. `kind` is forward, backward or inference; the first
    `visible` outputs go to the user, the rest are saved for backward. Within `inspect`, lower it only."""
    outcome = GraphReport(report.graph_name(options.model_name, kind), kind, target=options.target)
    outcome.fx = gm.print_readable(print_output=False)
    spool = recording()
    eager = eagerly(gm) if spool is not None else None
    with outcome.stage("passes"):
        gm = _narrowed(gm, options)
        passes.run(gm, visible, options.rng)
        placement = place(gm, options)
        check_placement(placement, options)
        if placement.forced and options.fallback == "eager":
            placement = whole_graph_on_host(gm, placement)
        outcome.ops = placement.ops()
        outcome.passes_fx = gm.print_readable(print_output=False)
        segments = partition(gm.graph, placement.is_native)
    inspected = collecting()
    if inspected is not None:
        _lower_only(gm, segments, options, outcome)
        inspected.append(outcome)
        dump(outcome, options)
        return _empty_results(gm)
    keys: list[CacheKey] = []
    programs: list[Program] = []

    def native(segment: Segment, results: set[Node]) -> tuple[Executable, Sources, Results]:
        lowered, sources, made = _lower(gm, segment, results, options, outcome)
        program = lowered.program
        executable, key, level = obtain(program, options, outcome) if eager is None else _postpone(program, options)
        keys.append(key)
        programs.append(program)
        outcome.programs.append(_program_report(lowered, level, key, options))
        return executable, sources, made

    compiled = StoredGraph(_assemble(gm, segments, native), keys, outcome)
    if spool is not None and eager is not None:
        spool.add(outcome, keys, programs, options)
        compiled = Standin(compiled, _empty_results(gm) if spool.fake else eager)
    report.record(outcome)
    dump(outcome, options)
    announce(outcome)
    return compiled


def _narrowed(gm: GraphModule, options: Options) -> GraphModule:
    """`gm` with its higher-order ops expanded, and its types narrowed to what the target has and complex ones taken apart."""
    numbers(gm)
    higher_order(gm)
    narrow = complex_pairs(precision(gm, options.resolved_target, options.precision), options.resolved_target)
    if narrow is not gm:
        higher_order(narrow)  # the sub-graphs were traced anew
    return narrow


def on_host(node: Node, reason: str, kind: str, options: Options) -> None:
    """Report an op that runs on the host outside of any graph that is compiled; `fallback="error"` refuses it.

    Reading a number for Python (`item`) is no op for want of a lowering, but what the runtime does on any target.
    """
    natural = node.target is torch.ops.aten._local_scalar_dense.default
    placement = Placement((node,), {node: reason} if natural else {}, {} if natural else {node: reason})
    check_placement(placement, options)
    report.record(GraphReport(report.graph_name(options.model_name, kind), kind, ops=placement.ops(), target=options.target))


def _lower(
    gm: GraphModule, segment: Segment, results: set[Node], options: Options, outcome: GraphReport, keep: bool = True
) -> tuple[Lowered, Sources, Results]:
    graph, sources, made = extract(segment, gm, results)
    with outcome.stage("passes"):
        if options.fusions == "on":
            outcome.fusions += fuse(graph)
    with outcome.stage("lower"):
        return obtain_program(graph, _aliases(gm, sources, made), options, outcome.name, keep), sources, made


def _program_report(lowered: Lowered, level: str, key: CacheKey | None, options: Options) -> ProgramReport:
    digest, cache_dir = key.digest if key is not None else "", str(options.cache_path) if options.cache != "off" else ""
    program = lowered.program
    return ProgramReport(
        key=digest,
        cache=level,
        program=program.stablehlo,
        lowered=lowered.level,
        cache_key=key,
        program_key=lowered.key,
        cache_dir=cache_dir,
        graph=lowered.graph,
        sources=program.sources,
        aliases=program.signature.aliases,
    )


def _aliases(gm: GraphModule, sources: Sources, made: Results) -> tuple[tuple[int, int], ...]:
    """(output, input) of a program where the graph then writes that output into that input."""
    writes = [node.args[:2] for node in gm.graph.nodes if node.target is torch.ops.aten.copy_.default]
    return tuple(sorted({(made.index(value), sources.index(into)) for into, value in writes if into in sources and value in made}))


def _lower_only(gm: GraphModule, segments: list[Segment], options: Options, outcome: GraphReport) -> None:
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    results = crossing(segments, output)
    for segment in segments:
        if segment.native and not results.isdisjoint(segment.nodes):
            lowered, _, _ = _lower(gm, segment, results, options, outcome, keep=False)
            key, level = None, "miss"
            with contextlib.suppress(CompilerMissingError):  # the program is worth seeing, though nothing here could compile it
                key = program_key(lowered.program.digest, options.resolved_target, options, compiler_for(options))
                level = Cache(options).level(key)
            outcome.programs.append(_program_report(lowered, level, key, options))


def _empty_results(gm: GraphModule) -> Callable[[list[Any]], Any]:
    """What stands for a compiled graph in an inspection: fake tensors of the traced shapes, and inputs that are outputs."""
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    (output,) = (n for n in gm.graph.nodes if n.op == "output")

    def run(given: list[Any]) -> Any:
        arguments = dict(zip(inputs, given, strict=True))
        mode = fake_mode(given)
        given.clear()

        def result(node: Node) -> Any:
            value = node.meta["val"]
            if node in arguments or not isinstance(value, torch.Tensor):
                return arguments.get(node, value)
            with mode:
                return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype)

        return list(torch.fx.node.map_arg(output.args[0], result))

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _assemble(
    gm: GraphModule, segments: list[Segment], native: Callable[[Segment, set[Node]], tuple[Executable, Sources, Results]]
) -> CompiledGraph:
    """Steps over numbered slots: the graph's inputs first, then every value in the order of its making."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    slots = {node: i for i, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    inputs = len(slots)
    results = crossing(segments, output)
    steps: list[Step] = []
    for segment in segments:
        if segment.native:
            if results.isdisjoint(segment.nodes):
                continue
            executable, sources, made = native(segment, results)
            for node in made:
                slots[node] = len(slots)
            steps.append(NativeStep(executable, tuple(slots[n] for n in sources), tuple(slots[n] for n in made)))
        else:
            for node in segment.nodes:
                slots[node] = len(slots)
                steps.append(_host_step(gm, node, slots))
    outputs: Any = torch.fx.node.map_aggregate(output.args[0], lambda v: _slot(v, slots))
    return CompiledGraph(inputs, len(slots), steps, tuple(outputs))


def _host_step(gm: GraphModule, node: Node, slots: dict[Node, int]) -> HostStep:
    if node.op == "get_attr":
        return HostStep(Constant(operator.attrgetter(str(node.target))(gm)), (), {}, slots[node])
    args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), lambda v: _slot(v, slots))
    target: Any = node.target
    return HostStep(target, _plain(args), _plain(kwargs), slots[node])


def _slot(value: Any, slots: dict[Node, int]) -> Any:
    return Slot(slots[value]) if isinstance(value, Node) else value


def _plain(value: Any) -> Any:
    """FX's immutable containers as Python's own."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return (list if isinstance(value, list) else tuple)(_plain(v) for v in value)
    return value


def _postpone(program: Program, options: Options) -> tuple[Executable, CacheKey, str]:
    """What stands for an executable of `program` in a run that only collects, with the key under which a job will look for it."""
    key = program_key(program.digest, options.resolved_target, options, compiler_for(options))
    return NotCompiled(program.signature), key, "miss"


def obtain(program: Program, options: Options, outcome: GraphReport) -> tuple[Executable, CacheKey, str]:
    """An executable of `program`, from the cache or the compiler, with its key and the cache level that had it."""
    compiler = compiler_for(options)
    cache = Cache(options)
    key = program_key(program.digest, options.resolved_target, options, compiler)

    def make() -> Artifact:
        with remembering(cache, key, program), outcome.stage("compile"):
            count("compiles")
            made = Compiled.of(compiler.compile(program))
        return Artifact(made.payload, program.signature, dict(outcome.timings), made.log, {PROGRAM: program.stablehlo, **made.blobs})

    while True:
        found = cache.obtain(key, outcome.name, make)
        outcome.add("wait", found.waited)
        assert found.artifact is not None
        if found.level == "miss":
            with outcome.stage("load"):
                return compiler.load(found.artifact.payload, found.artifact.signature), key, found.level
        with outcome.stage("load"):
            executable = load(compiler, found, cache, key, program.signature)
        if executable is not None:
            return executable, key, found.level
