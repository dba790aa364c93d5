"""Sizes and time spans as people write them."""

from __future__ import annotations

import re

from neuron_dynamo.errors import InspectError


def readable_size(size: float) -> str:
    """Bytes for people, in powers of 1000: `512 B`, `1.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


_UNITS: dict[str, float] = {
    "": 1,
    "b": 1,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_UNITS |= {unit[0]: value for unit, value in _UNITS.items() if len(unit) == 2}
_SPANS: dict[str, float] = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_size(text: str) -> int:
    """Bytes that `10GB`, `1.5 MiB` or `4096` stand for. Raises InspectError."""
    return int(_measured(text, _UNITS, "a size", "10GB, 500MB or 4096"))


def parse_span(text: str) -> float:
    """Seconds that `30d`, `12h`, `90min` or `3600` stand for. Raises InspectError."""
    return _measured(text, _SPANS, "a time span", "30d, 12h, 90min or 3600")


def _measured(text: str, units: dict[str, float], what: str, examples: str) -> float:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].lower() not in units:
        raise InspectError(f"{text!r} is not {what}", remedy=f"write it as {examples}")
    return float(match[1]) * units[match[2].lower()]
