"""check: what a Neuron target's compiler is published to refuse in a model, told without the compiler, a device or a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from neuron_dynamo.errors import OptionError
from neuron_dynamo.options import Options
from neuron_dynamo.preflight.finding import Finding
from neuron_dynamo.report import OpReport


@dataclass(frozen=True)
class GraphCheck:
    """One graph: what preflight finds in its programs, and its ops that run on the host instead, which the compiler never sees."""

    name: str
    kind: str
    findings: tuple[Finding, ...] = ()
    host_ops: tuple[OpReport, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """Answer of `check`: one GraphCheck a graph, in the order in which they would be compiled."""

    target: str
    graphs: tuple[GraphCheck, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for graph in self.graphs for finding in graph.findings)

    @property
    def refused(self) -> bool:
        """Whether the compiler is published to stop at anything."""
        return any(finding.refused for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        graphs = [
            {
                "name": graph.name,
                "kind": graph.kind,
                "findings": [asdict(finding) for finding in graph.findings],
                "host_ops": [asdict(op) for op in graph.host_ops],
            }
            for graph in self.graphs
        ]
        return {"target": self.target, "refused": self.refused, "graphs": graphs}


def check(model: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> CheckReport:
    """What is published against every graph that `torch.compile(model, backend="neuron", options=options)(*args, **kwargs)` would compile.

    Lowers each one, forward and backward, for `options["target"]`, as `inspect` does: nothing runs, and tensors need no memory. No finding
    does not mean that the compiler takes the program: only it can tell. Raises OptionError for the host target, which refuses nothing,
    and what `inspect` raises.
    """
    from neuron_dynamo.compilers.neuronx.arguments import WITH_INTEGER_FLAGS, arguments
    from neuron_dynamo.inspection import inspect
    from neuron_dynamo.preflight import check as preflight
    from neuron_dynamo.preflight.downcasts import allowed

    resolved = Options.resolve(options)
    target = resolved.resolved_target
    if target.is_host:
        raise OptionError("target 'host' refuses nothing, so there is nothing to check", remedy="name the target: trn1, trn2, trn3 or inf2")
    downcasts = allowed(arguments(resolved, WITH_INTEGER_FLAGS))
    graphs = []
    for graph in inspect(model, *args, options=options, **kwargs).graphs:
        found: dict[Finding, None] = {}
        for program in graph.programs:
            found.update(dict.fromkeys(preflight(program.program, target, program.sources, program.aliases, downcasts)))
        hosted = tuple(op for op in graph.ops if op.placement == "host")
        graphs.append(GraphCheck(graph.name, graph.kind, tuple(found), hosted))
    return CheckReport(target.name, tuple(graphs))
