"""The command `neuron-dynamo`: parse, call the library, print. One module a subcommand."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from neuron_dynamo.cli import cache, check, doctor, inspect, ops, warmup
from neuron_dynamo.errors import NeuronDynamoError
from neuron_dynamo.version import __version__

_COMMANDS = (inspect, check, ops, cache, warmup, doctor)
USER_ERROR = 2
"""Exit code where the user's input, options or model are at fault, as argparse has it."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="neuron-dynamo", description="Look at what torch.compile(backend='neuron') makes of a model.")
    parser.add_argument("--version", action="version", version=f"neuron-dynamo {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    common.add_argument("--debug", action="store_true", help="print the whole traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (sys.argv by default); returns the exit code.

    0; 1 where `doctor` found a problem, `check` a refusal, or a warm-up left a graph cold; 2 for a user's error.
    """
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except NeuronDynamoError as error:
        if args.debug:
            raise
        print(error, file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
