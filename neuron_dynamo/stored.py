"""A compiled graph as JSON and back: what PyTorch's AOTAutogradCache keeps of it. Artifacts stay in our own cache."""

from __future__ import annotations

import sys
from typing import Any

from neuron_dynamo import report
from neuron_dynamo.aot_cache import LiveGraph, NotRestorable
from neuron_dynamo.cache import PROGRAM, Cache, CacheKey
from neuron_dynamo.cache.counters import count
from neuron_dynamo.cache.loading import load
from neuron_dynamo.compilers import compiler_for
from neuron_dynamo.logs import announce
from neuron_dynamo.options import Options
from neuron_dynamo.report import GraphReport, ProgramReport
from neuron_dynamo.runtime.encoding import decode, decode_target, encode, encode_target
from neuron_dynamo.runtime.graph import CompiledGraph, Constant, HostStep, NativeStep, Step
from neuron_dynamo.stored_fx import decode_tensor, encode_tensor


class StoredGraph(CompiledGraph):
    """A CompiledGraph that can describe itself. `keys` are the cache keys of its native steps, in order."""

    def __init__(self, graph: CompiledGraph, keys: list[CacheKey], outcome: GraphReport) -> None:
        super().__init__(graph.inputs, graph.slots, graph.steps, graph.outputs)
        self.keys, self.outcome = keys, outcome

    def to_state(self) -> dict[str, Any]:
        """JSON-able description. Raises NotRestorable where a step has none."""
        keys = iter(self.keys)
        try:
            steps = [_native(step, next(keys)) if isinstance(step, NativeStep) else _host(step) for step in self.steps]
            outputs = encode(self.outputs)
        except ValueError as error:
            raise NotRestorable(str(error)) from error
        return {"inputs": self.inputs, "slots": self.slots, "steps": steps, "outputs": outputs, "report": self.outcome.describe()}


def _native(step: NativeStep, key: CacheKey) -> dict[str, Any]:
    return {"native": {"key": key.to_json(), "in": step.inputs, "out": step.outputs}}


def _host(step: HostStep) -> dict[str, Any]:
    if isinstance(step.target, Constant):
        return {"constant": [encode_tensor(step.target.value), step.output]}
    return {"host": [encode_target(step.target), encode(step.args), encode(step.kwargs), step.output]}


def restore(state: dict[str, Any], options: Options) -> LiveGraph:
    """The graph that `to_state` described, its artifacts loaded from the cache. Raises NotRestorable where one is gone or bad."""
    if "nodes" in state:
        return _symbolic(state, options)
    outcome = GraphReport.restore(state["report"])
    keys: list[CacheKey] = []
    steps: list[Step] = []
    for step in state["steps"]:
        if "native" in step:
            description = step["native"]
            key = CacheKey.from_json(description["key"])
            keys.append(key)
            steps.append(NativeStep(_load(key, options, outcome), tuple(description["in"]), tuple(description["out"])))
        elif "constant" in step:
            value, output = step["constant"]
            steps.append(HostStep(Constant(decode_tensor(value)), (), {}, output))
        else:
            name, args, kwargs, output = step["host"]
            try:
                steps.append(HostStep(decode_target(name), decode(args), decode(kwargs), output))
            except ValueError as error:
                raise NotRestorable(str(error)) from error
    graph = CompiledGraph(state["inputs"], state["slots"], steps, decode(state["outputs"]))
    return StoredGraph(graph, keys, outcome)


def _symbolic(state: dict[str, Any], options: Options) -> LiveGraph:
    """A graph that is specialised as it is called; each specialisation is compiled like any other, and so comes out of the cache."""
    from neuron_dynamo.compile import compile_graph, on_host
    from neuron_dynamo.dynamic import restore_any
    from neuron_dynamo.lowering.support import why_not_native

    kind, visible = state["about"]["kind"], state["about"]["visible"]
    try:
        return restore_any(
            state,
            lambda graph, everything: compile_graph(graph, kind, options, sys.maxsize if everything else visible),
            lambda node, reason: on_host(node, reason, kind, options),
            lambda node: why_not_native(node, options.resolved_target),
        )
    except (ValueError, LookupError, AttributeError) as error:
        raise NotRestorable(str(error)) from error


def not_restored(state: dict[str, Any], options: Options) -> StoredGraph:
    """Stands for `restore` where graphs are collected: each is to be lowered, and none can rely on an artifact's running here."""
    raise NotRestorable("graphs are being collected")


def admit(graph: LiveGraph, options: Options) -> None:
    """Report a restored graph like any other, once it is sure to be used; one that is specialised as it is called reports that itself."""
    count("restored")
    if not isinstance(graph, StoredGraph):
        return
    outcome = graph.outcome
    outcome.name = report.graph_name(options.model_name, outcome.kind)
    report.record(outcome)
    announce(outcome)


def _load(key: CacheKey, options: Options, outcome: GraphReport) -> Any:
    compiler, cache = compiler_for(options), Cache(options)
    found = cache.lookup(key, outcome.name)
    if found.artifact is None:
        raise NotRestorable(f"artifact {key.digest} is not in the cache")
    with outcome.stage("load"):
        executable = load(compiler, found, cache, key)
    if executable is None:
        raise NotRestorable(f"artifact {key.digest} could not be loaded")
    report_of = ProgramReport(key.digest, found.level, found.artifact.blobs[PROGRAM], cache_key=key, cache_dir=str(options.cache_path))
    outcome.programs.append(report_of)
    return executable
