"""The tables of README.md that come from the code. `python -m tools._readme` writes them; tests/test_readme.py compares them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neuron_dynamo import errors
from neuron_dynamo.options import Options
from tools._coverage import table

README = Path(__file__).resolve().parents[1] / "README.md"


def options_table() -> str:
    rows = []
    for field in dataclasses.fields(Options):
        values = ", ".join(f"`{choice}`" for choice in field.metadata["choices"]) or "-"
        default = "-" if field.default in (None, ()) else f"`{field.default}`"
        rows.append((f"`{field.name}`", default, values, f"`{field.metadata['env']}`", field.metadata["doc"]))
    return _markdown(("option", "default", "values", "environment variable", "meaning"), rows)


def errors_table() -> str:
    rows = sorted((code, f"`{kind.__name__}`", meaning) for code, kind, meaning in error_codes())
    return _markdown(("code", "class", "meaning"), rows)


def error_codes() -> Iterator[tuple[str, type, str]]:
    """(code, class, meaning) of every concrete error and warning in errors.py. Raises ValueError for a class with no code of its own."""
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        meaning = " ".join((kind.__doc__ or "").split())
        if kind is errors.NeuronDynamoError or kind is errors.NeuronDynamoWarning:
            continue
        if issubclass(kind, errors.NeuronDynamoWarning):
            code, colon, meaning = meaning.partition(": ")
            if not colon or not re.fullmatch(r"ND1\d\d", code):
                raise ValueError(f"the docstring of {kind.__name__} does not begin with its code")
            yield code, kind, meaning
        elif issubclass(kind, errors.NeuronDynamoError):
            if "code" not in vars(kind):
                raise ValueError(f"{kind.__name__} has no code of its own")
            yield kind.code, kind, meaning


def coverage_table() -> str:
    return table.brief(json.loads(table.JSON.read_text()))


TABLES = {"options": options_table, "errors": errors_table, "coverage": coverage_table}


def with_tables(text: str) -> str:
    """README's text with the block between each pair of markers made anew."""
    for name, made in TABLES.items():
        block = f"<!-- {name} -->\n{made()}<!-- /{name} -->"
        text, count = re.subn(f"<!-- {name} -->.*?<!-- /{name} -->", lambda _, block=block: block, text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"README.md has {count} blocks for the table of {name}")
    return text


def _markdown(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
