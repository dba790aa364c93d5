"""`neuron-dynamo cache explain` and `cache selftest`: why a key is not another one's."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from neuron_dynamo.cli.option_flags import add_option_flags, given_options
from neuron_dynamo.cli.output import console, print_json, table

DIFFERENT = 1
"""Exit code where the self-test found a difference."""


def add_actions(action: Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]) -> None:
    """Add both actions to `neuron-dynamo cache`, whose parsers `action(name, run, doc)` makes."""
    made = action("explain", _explain, "compare a miss with the nearest entries: which parts of the key differ, and how the programs do")
    made.add_argument("what", nargs="?", metavar="DIGEST|module:function", help="an entry, or a model as for 'inspect'")
    made.add_argument("--last", action="store_true", help="the artifact that was compiled last")
    made.add_argument("--count", type=int, default=1, metavar="N", help="compare with the N nearest entries (1)")
    add_option_flags(made, without="cache")
    made = action("selftest", _selftest, "lower a model under other hash seeds, paths and orders; exit code 1 if any byte differs")
    made.add_argument("model", metavar="module:function", help="takes no argument, returns (callable, args) or (callable, args, kwargs)")
    add_option_flags(made, without="cache")


def _explain(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.explain import explain
    from neuron_dynamo.errors import InspectError

    if args.last == (args.what is not None):
        raise InspectError(
            "one thing is to be explained", remedy="give a digest that 'neuron-dynamo cache ls' lists, module:function, or --last"
        )
    found = explain(args.what, cache_dir=args.cache_dir, options=given_options(args), count=args.count)
    if args.json:
        print_json([explanation.to_json() for explanation in found])
        return 0
    out = console()
    for explanation in found:
        name = f"{explanation.graph}: " if explanation.graph else ""
        out.print(f"{name}{explanation.kind} {explanation.digest}, {explanation.level}; {explanation.reason}", markup=False)
        for neighbour in explanation.neighbours:
            rows = table("key part", "here", "there", title=f"against {neighbour.digest}")
            for difference in neighbour.differences:
                rows.add_row(difference.part, difference.own or "absent", difference.stored or "absent")
            out.print(rows, markup=False)
            if neighbour.diff:
                print(neighbour.diff)
    if not found:
        out.print("no program: nothing in the model reached a compiler that is here")
    return 0


def _selftest(args: argparse.Namespace) -> int:
    from neuron_dynamo.cache.selftest import selftest

    result = selftest(args.model, options=given_options(args))
    if args.json:
        print_json(result.to_json())
    else:
        print(result)
    return DIFFERENT if result.differences else 0
