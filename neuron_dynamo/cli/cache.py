"""`neuron-dynamo cache where|ls|show`: what the compile cache holds. Only reads."""

from __future__ import annotations

import argparse
import time
from typing import Any

from neuron_dynamo.cli.output import console, print_json, table
from neuron_dynamo.options import Options


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("cache", help="look at the compile cache", description=__doc__)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, doc in (
        ("where", _where, "print the directory of the cache"),
        ("ls", _list, "list the entries, newest first"),
        ("show", _show, "print the manifest of one entry"),
    ):
        action = actions.add_parser(name, parents=[common], help=doc, description=doc)
        action.add_argument("--cache-dir", help="directory of the cache (NEURON_DYNAMO_CACHE_DIR, else ~/.cache/neuron_dynamo)")
        action.set_defaults(run=run)
        if name == "show":
            action.add_argument("digest", help="digest of the entry, or the beginning of it")


def _where(args: argparse.Namespace) -> int:
    path = str(_options(args).cache_path)
    if args.json:
        print_json({"cache_dir": path})
    else:
        print(path)
    return 0


def _list(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.listing import entries

    path = _options(args).cache_path
    found = entries(path)
    if args.json:
        print_json([entry.to_json() for entry in found])
        return 0
    rows = table("digest", "target", "compiler", "bytes>", "compile s>", "written", title=f"{len(found)} entries in {path}")
    for entry in found:
        parts = dict(entry.key.parts)
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created))
        seconds = sum(entry.manifest["timings"].values())
        rows.add_row(entry.digest[:16], parts.get("target"), parts.get("compiler"), f"{entry.size:,}", f"{seconds:.3f}", written)
    console().print(rows)
    return 0


def _show(args: argparse.Namespace) -> int:
    from rich.text import Text

    from neuron_dynamo.cache.listing import entries
    from neuron_dynamo.errors import InspectError

    path = _options(args).cache_path
    found = [entry for entry in entries(path) if entry.digest.startswith(args.digest.lower())]
    if len(found) != 1:
        what = f"{len(found)} entries begin with {args.digest!r}" if found else f"no entry of {path} begins with {args.digest!r}"
        raise InspectError(what, remedy="give enough of a digest that 'neuron-dynamo cache ls' lists")
    (entry,) = found
    if args.json:
        print_json(entry.to_json())
        return 0
    out = console()
    out.print(f"{entry.digest}\n{entry.path}", markup=False)
    parts = table("key part", "value")
    for name, value in entry.key.parts:
        parts.add_row(name, Text(value))
    files = table("file", "bytes>", "sha256")
    for name, description in entry.manifest["files"].items():
        files.add_row(name, f"{description['size']:,}", description["sha256"])
    timings = table("stage", "seconds>")
    for stage, seconds in entry.manifest["timings"].items():
        timings.add_row(stage, f"{seconds:.3f}")
    out.print(parts, files, timings)
    if entry.manifest["log"]:
        out.print(entry.manifest["log"], markup=False)
    return 0


def _options(args: argparse.Namespace) -> Options:
    return Options.resolve({"cache_dir": args.cache_dir} if args.cache_dir else None)
