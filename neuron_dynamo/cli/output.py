"""How every command prints: rich for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(data: Any) -> None:
    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")


def console() -> Console:
    """A console on standard output that breaks no words apart where a pipe or file has no width."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(width=None if terminal else 160, highlight=False, soft_wrap=not terminal)


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table; a column name that ends in `>` is right-aligned."""
    from rich import box
    from rich.table import Table

    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        result.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    return result
