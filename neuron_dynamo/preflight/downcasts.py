"""--implicit-integer-downcast: which ops on integers the compiler may compute in a type that loses digits, and which it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuron_dynamo.preflight.rule import Fault

FLAG = "--implicit-integer-downcast"
ALL = frozenset({"all_reduce", "dot", "pow", "reduce_scatter", "scatter"})
"""The flag's words. Of a compiler that is not told, all: the default of SDK 2.32, and what older releases always did."""
IN_FLOAT32 = "values beyond 2^24 lose digits: the compiler computes it in float32"


@dataclass(frozen=True)
class Downcast(Fault):
    """An op that the compiler narrows, with `loss`, where the flag allows `word`, and refuses where it does not."""

    word: str = ""
    loss: str = IN_FLOAT32

    def settled(self, allowed: frozenset[str]) -> Fault:
        """What it comes to where the flag allows these words."""
        if self.word in allowed:
            return Fault(self.code, f"{self.what}: {self.loss}", self.remedy, refused=False)
        remedy = f"cast to float32 where that holds the values, or allow {self.word} in {FLAG}"
        return Fault(self.code, f"{self.what}, which {FLAG} keeps the compiler from narrowing", remedy)


def allowed(arguments: Sequence[str]) -> frozenset[str]:
    """The words that a command line allows, which holds each flag once, before its value."""
    if FLAG not in arguments:
        return ALL
    words = set(arguments[arguments.index(FLAG) + 1].split(","))
    return ALL if words & {"all", "default"} else frozenset(words - {"none"})
