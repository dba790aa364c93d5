"""`neuron-dynamo check module:function --target trn2`: what the target's compiler would refuse in a model, without compiler or device."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from neuron_dynamo.cli.factory import load_model
from neuron_dynamo.cli.output import console, print_json, table
from neuron_dynamo.options import Options
from neuron_dynamo.target import TARGET_NAMES

if TYPE_CHECKING:
    from neuron_dynamo.checking import CheckReport, GraphCheck
    from neuron_dynamo.preflight.finding import Finding


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("check", parents=[common], help="find what a target's compiler would refuse", description=__doc__)
    parser.add_argument("model", metavar="module:function", help="takes no argument, returns (callable, args) or (callable, args, kwargs)")
    parser.add_argument("--target", choices=TARGET_NAMES, help="machine to check for (NEURON_DYNAMO_TARGET by default)")
    parser.add_argument("--lnc", metavar="VALUE", help=Options.__dataclass_fields__["lnc"].metadata["doc"])
    parser.add_argument("--precision", metavar="VALUE", choices=("warn", "narrow", "error"), help="see the option of this name")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 also where nothing is refused, but digits are lost or a limit may be met"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    options = {name: getattr(args, name) for name in ("target", "lnc", "precision") if getattr(args, name) is not None}
    Options.resolve(options)  # a bad option is told before the model is made
    model, inputs, keywords = load_model(args.model)

    from neuron_dynamo.checking import check

    report = check(model, *inputs, options=options, **keywords)
    if args.json:
        print_json(report.to_json())
    else:
        _print(report)
    return 1 if report.refused or (args.strict and report.findings) else 0


def _print(report: CheckReport) -> None:
    out = console()
    if not report.graphs:
        out.print("no graph: nothing in the model reached the backend")
    for graph in report.graphs:
        if graph.findings:
            out.print(_findings(graph))
        if graph.host_ops:
            names = ", ".join(sorted({op.name for op in graph.host_ops}))
            count = f"{len(graph.host_ops)} ops run on the host, out of the compiler's sight"
            out.print(f"{graph.name} ({graph.kind}): {count}: {names}", markup=False)
    refused = sum(finding.refused for finding in report.findings)
    others = len(report.findings) - refused
    counts = f"{refused} refused, {others} to know of" if report.findings else "nothing found"
    number = f"{len(report.graphs)} graph{'s' if len(report.graphs) != 1 else ''}"
    out.print(f"{number} for {report.target}: {counts}. Only its compiler can tell whether it takes the rest.", markup=False)


def _findings(graph: GraphCheck) -> Any:
    from rich.text import Text

    rows = table("code", "", "finding", title=f"{graph.name} ({graph.kind})")
    for finding in graph.findings:
        style, word = ("bold red", "refused") if finding.refused else ("yellow", "digits")
        rows.add_row(Text(finding.code or "-"), Text(word, style), Text("\n".join(_lines(finding))))
    return rows


def _lines(finding: Finding) -> list[str]:
    origin = f"{finding.op}, from {finding.fx_op}" if finding.fx_op else finding.op
    where = [f"at {finding.source}" + (f": {finding.source.code}" if finding.source.code else "")] if finding.source else []
    return [finding.what, origin, *where, f"-> {finding.remedy}"]
