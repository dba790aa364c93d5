"""Options as flags of commands, and sizes and time spans as their values."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from neuron_dynamo.errors import InspectError
from neuron_dynamo.options import Options
from neuron_dynamo.units import parse_size, parse_span

T = TypeVar("T")


def add_option_flags(parser: Any, without: str | None = None) -> None:
    """A flag `--like-this` for each of Options, or for those whose names do not begin with `without`; none has a default."""
    for field in dataclasses.fields(Options):
        if without is None or not field.name.startswith(without):
            flag, help_text = f"--{field.name.replace('_', '-')}", field.metadata["doc"].replace("%", "%%")
            parser.add_argument(flag, metavar="VALUE", choices=field.metadata["choices"] or None, help=help_text)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options given as flags. Raises OptionError: a bad option is told before a model is made."""
    names = [field.name for field in dataclasses.fields(Options)]
    options = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    Options.resolve(options)
    return options


def _of_argparse(parse: Callable[[str], T]) -> Callable[[str], T]:
    def parse_or_refuse(text: str) -> T:
        try:
            return parse(text)
        except InspectError as error:
            raise argparse.ArgumentTypeError(error.what) from error

    return parse_or_refuse


span = _of_argparse(parse_span)
"""argparse's type of a time span, in seconds."""

size = _of_argparse(parse_size)
"""argparse's type of a size, in bytes."""
