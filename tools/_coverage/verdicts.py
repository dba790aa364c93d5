"""The words of the measurement: units, verdicts. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "bool", "complex64", "float8_e4m3fn", "float8_e5m2")
DATABASES = ("op", "module", "optimizer", "hop", "custom_op")
VERDICTS = {
    "N": "native",
    "P": "partly on the host",
    "H": "host only",
    "-": "no graph: nothing left to compute",
    "B": "not traced whole by PyTorch itself (its aot_eager refuses, too); right in pieces",
    "X": "eager has no kernel for it: nothing to compare with",
    "W": "wrong",
    "E": "error",
    "C": "crash",
    "T": "timeout",
    "R": "refused by the target's compiler, as preflight finds",
}
FAULTS = "WECTR"
TOTAL = -2
"""Case number under which a unit's number of cases in the database is recorded."""
BROKEN = -1
"""Case number of a unit whose samples cannot be made."""


@dataclass(frozen=True, order=True)
class Unit:
    """One entry of a database at one dtype and direction."""

    database: str
    name: str
    dtype: str
    direction: str

    def __str__(self) -> str:
        return f"{self.database}/{self.name}/{self.dtype}/{self.direction}"
