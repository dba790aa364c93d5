"""`neuron-dynamo cache ...`: look at the compile cache, check it, bound it, and carry it to other machines. Safe while jobs run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_dynamo.cli.cache_explain import add_actions
from neuron_dynamo.cli.option_flags import size, span
from neuron_dynamo.cli.output import console, print_json, table
from neuron_dynamo.errors import InspectError, NeuronDynamoError
from neuron_dynamo.units import readable_size

if TYPE_CHECKING:
    from rich.table import Table

    from neuron_dynamo.cache.listing import Entry

BAD = 1
"""Exit code where an entry is bad, or a part of a bundle was refused."""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("cache", help="look at the compile cache, check, bound, export and import it", description=__doc__)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    shared = argparse.ArgumentParser(add_help=False, parents=[common])
    shared.add_argument("--cache-dir", help="directory of the cache (NEURON_DYNAMO_CACHE_DIR, else ~/.cache/neuron_dynamo)")

    def action(name: str, run: Callable[[argparse.Namespace], int], doc: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = actions.add_parser(name, parents=[shared], help=doc, description=doc)
        made.set_defaults(run=run)
        return made

    made = action("where", _where, "print the directory of the cache")
    made.add_argument("--long", action="store_true", help="also print who said so, and the layers and remote store behind it")
    made = action("ls", _list, "list the entries, newest first")
    made.add_argument("--target", help="only entries for this target")
    made.add_argument("--kind", choices=_KINDS, help="only entries of this kind; a failure is the remembered error of a compiler")
    made.add_argument("--failed", action="store_const", const="failure", dest="kind", help="the same as --kind failure")
    made.add_argument("--older", type=span, metavar="AGE", help="only entries written longer ago than this: 30d, 12h")
    made.add_argument("--newer", type=span, metavar="AGE", help="only entries written less long ago than this")
    made.add_argument(
        "--sort", choices=_ORDERS, default="created", help="newest first (created), or last used, largest, costliest first, or by target"
    )
    made.add_argument("--limit", type=int, metavar="N", help="print the first N")
    made = action("show", _show, "print one entry: key, files, signature, timings, the compiler's log")
    made.add_argument("digest", help="digest of the entry, or the beginning of it")
    made.add_argument("--stablehlo", action="store_true", help="print its StableHLO instead")
    made = action("verify", _verify, "compare every entry with its checksums; exit code 1 if one is bad")
    made.add_argument("--quarantine", action="store_true", help="move bad entries to the quarantine folder")
    made = action("gc", _gc, "remove least recently used entries, and what dead processes left")
    made.add_argument("--max-size", type=size, metavar="SIZE", help="remove entries until they take at most this: 10GB, 500MB")
    made.add_argument("--max-age", type=span, metavar="AGE", help="remove entries that nobody used for this long: 30d, 12h")
    made.add_argument("--quarantine", action="store_true", help="remove all quarantined entries too")
    made.add_argument("--dry-run", action="store_true", help="remove nothing, print what would be")
    made = action("export", _export, "write entries into one file, to be imported elsewhere")
    made.add_argument("file", help="file to write")
    made.add_argument("--target", help="only entries for this target")
    made.add_argument("--digest", action="append", metavar="DIGEST", help="only this entry (the beginning of its digest); repeatable")
    made.add_argument(
        "--digests-from", metavar="FILE", help="only the entries whose digests this file lists, one a line ('-': standard input)"
    )
    made = action("import", _import, "merge the entries of a bundle into the cache; exit code 1 if one is refused")
    made.add_argument("file", help="file that 'export' wrote")
    made = action("push", _push, "upload entries to the remote that it lacks; exit code 1 if one cannot be used")
    made.add_argument("--remote", metavar="URL", help="where to (NEURON_DYNAMO_CACHE_REMOTE)")
    made.add_argument("--target", help="only entries for this target")
    made.add_argument("--replace", action="store_true", help="upload what is there already, too")
    action("stats", _stats, "count entries and bytes by target, compiler and kind")
    add_actions(action)


_KINDS = ("artifact", "program", "failure")
_ORDERS = ("created", "used", "size", "seconds", "target")


def _where(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.usage import where

    found = where(args.cache_dir)
    if args.json:
        print_json(found.to_json())
        return 0
    print(found.path)
    if args.long:
        state = "" if found.exists else ", not there yet"
        print(f"from {found.source}{state}, {'writable' if found.writable else 'not writable'}")
        for layer in found.layers:
            print(f"layer {layer}")
        if found.remote:
            print(f"remote {found.remote}")
    return 0


def _list(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.listing import cache_root, entries
    from neuron_dynamo.cache.usage import usage

    chosen = entries(args.cache_dir, target=args.target, kind=args.kind, older=args.older, newer=args.newer, order=args.sort)
    found = chosen[: args.limit]
    if args.json:
        print_json([entry.to_json() for entry in found])
        return 0
    total = readable_size(sum(entry.size for entry in chosen))
    rows = table(
        "digest",
        "kind",
        "target",
        "compiler",
        "size>",
        "seconds>",
        "written",
        "used",
        title=f"{len(chosen)} entries in {cache_root(args.cache_dir)}, {total}",
    )
    for entry in found:
        times = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) for moment in (entry.created, entry.used))
        rows.add_row(entry.digest[:16], entry.kind, entry.target, entry.compiler, readable_size(entry.size), f"{entry.seconds:.3f}", *times)
    out = console()
    out.print(rows)
    if len(found) < len(chosen):
        out.print(f"and {len(chosen) - len(found)} more")
    for number, room in usage(args.cache_dir).other_formats.items():
        out.print(f"{room.count} entries of format {number} ({readable_size(room.size)}), which this version neither reads nor removes")
    return 0


def _show(args: argparse.Namespace) -> int:
    from rich.text import Text

    from neuron_dynamo.cache.listing import show

    entry = show(args.digest, args.cache_dir)
    if args.json:
        print_json(entry.to_json() | {"neff": _neff(entry)} | ({"stablehlo": entry.stablehlo} if args.stablehlo else {}))
        return 0
    if args.stablehlo:
        print(entry.stablehlo)
        return 0
    out = console()
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created))
    out.print(f"{entry.digest}\n{entry.path}\n{entry.kind}, {readable_size(entry.size)}, written {written}", markup=False)
    parts = table("key part", "value")
    for name, value in entry.key.parts:
        parts.add_row(name, Text(value))
    signature = table("", "shape", "type")
    for side in ("inputs", "outputs"):
        for number, (shape, dtype) in enumerate(_specs(entry.manifest.get("signature"), side)):
            signature.add_row(f"{side[:-1]} {number}", shape, dtype)
    files = table("file", "bytes>", "sha256")
    for name, description in entry.manifest["files"].items():
        files.add_row(name, f"{description['size']:,}", description["sha256"])
    timings = table("stage", "seconds>")
    for stage, seconds in entry.manifest["timings"].items():
        timings.add_row(stage, f"{seconds:.3f}")
    out.print(parts, signature, files, timings)
    described = _neff(entry)
    if described is not None:
        out.print(_neff_table(described))
    if entry.manifest["log"]:
        out.print(entry.manifest["log"], markup=False)
    return 0


def _neff(entry: Entry) -> dict[str, Any] | None:
    """The description of the entry's NEFF, of a damaged one what is wrong with it; None for an entry that holds none."""
    try:
        return entry.neff
    except (NeuronDynamoError, OSError) as error:
        return {"error": str(error)}


def _neff_table(described: dict[str, Any]) -> Table:
    from rich.text import Text

    rows = table("NEFF", "")
    for name, value in described.items():
        if isinstance(value, list):
            value = ", ".join(f"{item['name']} ({item['size']:,} bytes)" if isinstance(item, dict) else str(item) for item in value)
        rows.add_row(name, Text(str(value)))
    return rows


def _specs(signature: Any, side: str) -> list[tuple[str, str]]:
    from neuron_dynamo.lowering.program import Signature

    try:
        return [(str(list(spec.shape)), str(spec.dtype)) for spec in getattr(Signature.from_json(signature), side)]
    except (LookupError, TypeError, ValueError, AttributeError):
        return []


def _verify(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.verify import verify

    outcome = verify(args.cache_dir, quarantine=args.quarantine)
    if args.json:
        print_json(outcome.to_json())
        return BAD if outcome.bad else 0
    out = console()
    out.print(f"{outcome.good} entries of {outcome.root} are good, {len(outcome.bad)} bad", markup=False)
    for bad in outcome.bad:
        place = f"moved to {bad.moved_to}" if bad.moved_to else str(bad.path)
        out.print(f"{bad.digest}: {bad.reason}; {place}", markup=False)
    if outcome.other_format:
        out.print(f"{len(outcome.other_format)} entries of another format were left alone")
    if outcome.bad and not args.quarantine:
        out.print("Bad entries are never used, only recompiled; --quarantine moves them out of the way.")
    return BAD if outcome.bad else 0


def _gc(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.collection import gc

    outcome = gc(args.cache_dir, max_size=args.max_size, max_age=args.max_age, quarantine=args.quarantine, dry_run=args.dry_run)
    if args.json:
        print_json(outcome.to_json() | {"dry_run": args.dry_run})
        return 0
    for item in outcome.removed:
        print(f"{item.kind} {item.path} ({readable_size(item.size)}): {item.reason}")
    done = "would be removed" if args.dry_run else "removed"
    print(f"{len(outcome.removed)} {done}, {readable_size(outcome.freed)}; {readable_size(outcome.after)} of entries are left")
    return 0


def _export(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.bundle import export

    digests = args.digest
    if args.digests_from:
        digests = [*(digests or ()), *_lines(args.digests_from)]
    try:
        outcome = export(args.file, args.cache_dir, target=args.target, digests=digests)
    except OSError as error:
        raise InspectError(f"{args.file} cannot be written: {error}", remedy="give a path in a folder that you may write to") from error
    if args.json:
        print_json(outcome.to_json())
    else:
        print(f"{len(outcome.digests)} entries, {readable_size(outcome.size)}, in {outcome.path}")
        for digest, reason in outcome.skipped:
            print(f"{digest} left out: {reason}")
    return BAD if outcome.skipped else 0


def _lines(path: str) -> list[str]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InspectError(f"{path} cannot be read: {error}", remedy="give a text file with one digest a line") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _push(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.push import push

    outcome = push(args.remote, args.cache_dir, target=args.target, replace=args.replace)
    if args.json:
        print_json(outcome.to_json())
    else:
        print(f"{outcome.remote}: {len(outcome.sent)} uploaded, {outcome.present} already there, {len(outcome.skipped)} left out")
        for digest, reason in outcome.skipped:
            print(f"{digest}: {reason}")
    return BAD if outcome.skipped else 0


def _import(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.bundle import import_

    try:
        outcome = import_(args.file, args.cache_dir)
    except OSError as error:
        raise InspectError(f"{args.file} cannot be read: {error}", remedy="give a file that 'neuron-dynamo cache export' wrote") from error
    if args.json:
        print_json(outcome.to_json())
    else:
        print(f"{outcome.root}: {len(outcome.new)} new, {len(outcome.present)} already there, {len(outcome.refused)} refused")
        for name, reason in outcome.refused:
            print(f"{name}: {reason}")
    return BAD if outcome.refused else 0


def _stats(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.usage import usage

    found = usage(args.cache_dir)
    if args.json:
        print_json(found.to_json())
        return 0
    total = found.entries
    rows = table(
        "target", "compiler", "kind", "entries>", "size>", title=f"{total.count} entries in {found.root}, {readable_size(total.size)}"
    )
    for (target, compiler, kind), room in found.groups.items():
        rows.add_row(target, compiler, kind, f"{room.count:,}", readable_size(room.size))
    out = console()
    out.print(rows)
    for what, room in (
        ("damaged", found.damaged),
        ("in quarantine", found.quarantine),
        ("being written, or left by a dead process", found.drafts),
    ):
        if room.count:
            out.print(f"{room.count} {what}, {readable_size(room.size)}")
    for number, room in found.other_formats.items():
        out.print(f"{room.count} of format {number}, {readable_size(room.size)}, which this version neither reads nor removes")
    return 0
