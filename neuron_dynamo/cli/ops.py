"""`neuron-dynamo ops [PATTERN]`: how each op is lowered, and where its rule is."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from typing import Any

from neuron_dynamo.cli.output import console, print_json, table

_STYLES = {"rule": "green", "decomposition": "green", "composite": "green", "host": "yellow"}


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("ops", parents=[common], help="how each op is lowered, and where its rule is", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="part of the op's name, e.g. softmax")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rich.text import Text

    from neuron_dynamo.op_index import index

    found = index(args.pattern)
    if args.json:
        print_json([asdict(op) for op in found])
        return 0
    rows = table("op", "lowered by", "where")
    for op in found:
        rows.add_row(op.name, Text(op.how, _STYLES[op.how]), Text(op.where))
    out = console()
    if found:
        out.print(rows)
    counts = Counter(op.how for op in found)
    out.print(f"{len(found)} ops" + "".join(f", {counts[how]} {how}" for how in _STYLES if counts[how]))
    return 0
