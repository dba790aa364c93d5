"""`neuron-dynamo doctor`: what this machine has, and what to do about the rest."""

from __future__ import annotations

import argparse
from typing import Any

from neuron_dynamo.cli.output import console, print_json, table
from neuron_dynamo.target import TARGET_NAMES

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("doctor", parents=[common], help="check this machine", description=__doc__)
    parser.add_argument("--target", choices=TARGET_NAMES, help="machine to check for (NEURON_DYNAMO_TARGET, else host)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rich.markup import escape

    from neuron_dynamo.doctor import diagnose

    diagnosis = diagnose({"target": args.target} if args.target else None)
    if args.json:
        print_json(diagnosis.to_json())
        return 0 if diagnosis.healthy else 1
    checks = table("", "check", "found", title=f"neuron-dynamo on this machine, target {diagnosis.target}")
    for check in diagnosis.checks:
        remedy = f"\n-> {check.remedy}" if check.remedy else ""
        checks.add_row(f"[{_STYLES[check.status]}]{check.status}[/]", check.name, escape(check.found + remedy))
    out = console()
    out.print(checks)
    problems = sum(check.status == "problem" for check in diagnosis.checks)
    out.print("no problems" if diagnosis.healthy else f"{problems} problem{'s' if problems > 1 else ''}")
    return 0 if diagnosis.healthy else 1
