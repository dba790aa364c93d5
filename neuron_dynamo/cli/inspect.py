"""`neuron-dynamo inspect module:function`: the graphs that torch.compile makes of a model, and what became of them. Runs no model."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from neuron_dynamo.cli.factory import load_model
from neuron_dynamo.cli.option_flags import add_option_flags, given_options
from neuron_dynamo.cli.output import console, print_json, table

if TYPE_CHECKING:
    from neuron_dynamo.inspection import Report
    from neuron_dynamo.report import FusionReport, GraphReport, OpReport

_TEXTS = ("fx", "stablehlo", "hlo")


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("inspect", parents=[common], help="show what a model becomes", description=__doc__)
    parser.add_argument("model", metavar="module:function", help="takes no argument, returns (callable, args) or (callable, args, kwargs)")
    parser.add_argument("--show", choices=_TEXTS, help="print this text of every graph instead of tables")
    add_option_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    options = given_options(args)
    model, inputs, keywords = load_model(args.model)

    from neuron_dynamo.inspection import inspect

    report = inspect(model, *inputs, options=options, **keywords)
    if args.json:
        print_json(report_json(report))
    elif args.show:
        _print_texts(report, args.show)
    else:
        _print_tables(report)
    return 0


def report_json(report: Report) -> dict[str, Any]:
    """Everything that `report` holds, as JSON values."""
    return {"graphs": [_graph_json(graph) for graph in report.graphs]}


def _graph_json(graph: GraphReport) -> dict[str, Any]:
    texts = {name: getattr(graph, name) for name in _TEXTS}
    ops = [
        {"name": op.name, "placement": op.placement, "reason": op.reason, "source": dataclasses.asdict(op.source) if op.source else None}
        for op in graph.ops
    ]
    facts = {"key": graph.key, "cache": graph.cache, "timings": dict(graph.timings)}
    fusions = [dataclasses.asdict(fusion) for fusion in graph.fusions]
    return {"name": graph.name, "kind": graph.kind, **facts, "ops": ops, "fusions": fusions, **texts}


def _print_texts(report: Report, name: str) -> None:
    comment = "#" if name == "fx" else "//"
    for graph in report.graphs:
        print(f"{comment} {graph.name} ({graph.kind})\n{getattr(graph, name)}\n")


def _print_tables(report: Report) -> None:
    out = console()
    if not report.graphs:
        out.print("no graph: nothing in the model reached the backend")
        return
    graphs = table("graph", "kind", "native>", "host>", "cache", "seconds>", "key")
    for graph in report.graphs:
        seconds = f"{sum(graph.timings.values()):.3f}"
        keys = "\n".join(program.key[:16] for program in graph.programs)
        graphs.add_row(graph.name, graph.kind, str(graph.native), str(graph.host), graph.cache, seconds, keys)
    out.print(graphs)
    for graph in report.graphs:
        _print_graph(graph)


def _print_graph(graph: GraphReport) -> None:
    from rich.text import Text

    out = console()
    ops = table("op", "count>", "placement", "reason", "first source line", title=f"{graph.name} ({graph.kind})")
    groups: dict[tuple[str, str, str], list[OpReport]] = {}
    for op in graph.ops:
        groups.setdefault((op.name, op.placement, op.reason), []).append(op)
    # What runs on the host is what the reader came for.
    for (name, placement, reason), members in sorted(groups.items(), key=lambda item: (item[0][1] != "host", -len(item[1]), item[0][0])):
        source = next((str(op.source) for op in members if op.source), "")
        ops.add_row(name, str(len(members)), Text(placement, "yellow" if placement == "host" else "green"), Text(reason), Text(source))
    out.print(ops)
    if graph.fusions:
        _print_fusions(graph)
    stages = ", ".join(f"{stage} {seconds:.3f} s" for stage, seconds in graph.timings.items())
    if stages:
        out.print(stages, markup=False)


def _print_fusions(graph: GraphReport) -> None:
    from rich.text import Text

    fusions = table("fusion", "count>", "why not", "first source line")
    groups: dict[tuple[str, str], list[FusionReport]] = {}
    for fusion in graph.fusions:
        groups.setdefault((fusion.name, fusion.reason), []).append(fusion)
    for (name, reason), members in groups.items():
        source = next((str(fusion.source) for fusion in members if fusion.source), "")
        fusions.add_row(name, str(len(members)), Text(reason), Text(source))
    console().print(fusions)
