"""Preflight as the compilers use it: every refusal in one error, everything else in one warning."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

from neuron_dynamo.errors import CompilerWarning, PreflightError
from neuron_dynamo.lowering.program import Program
from neuron_dynamo.preflight.checker import check
from neuron_dynamo.preflight.downcasts import allowed
from neuron_dynamo.preflight.finding import Finding
from neuron_dynamo.target import Target

WITH_WIDE_INTEGERS = (2, 27)
"""First release of neuronx-cc that can be told to keep 64-bit integers."""
_warned: set[str] = set()


def refuse(program: Program, target: Target, release: tuple[int, int] | None = None, arguments: Sequence[str] = ()) -> list[Finding]:
    """What preflight finds in `program`; raises PreflightError, which holds every finding, where the compiler would stop.

    Findings about exactness, estimates and what is not known to be taken alone are warned of once a process. A compiler of an older
    `release` (major, minor) keeps 32 bits of an integer on any target. `arguments` are those that the compiler gets.
    """
    if release is not None and release < WITH_WIDE_INTEGERS:
        target = dataclasses.replace(target, wide_integers=False)
    found = check(program.stablehlo, target, program.sources, program.signature.aliases, allowed(arguments))
    refused = [finding for finding in found if finding.refused]
    if refused:
        count = f"{len(refused)} thing{'s' if len(refused) > 1 else ''}"
        raise PreflightError(
            f"the program holds {count} that the compiler for {target.name} is published to refuse; it was not started\n  "
            + "\n  ".join(map(str, found)),
            found,
            remedy="see each finding; `neuron-dynamo check` lists them without compiling",
        )
    fresh = [text for text in map(str, found) if text not in _warned]
    if fresh:
        _warned.update(fresh)
        warnings.warn(
            f"ND143: for {target.name}, fewer digits than asked for, near a limit, or not known to be taken:\n  " + "\n  ".join(fresh),
            CompilerWarning,
            stacklevel=2,
        )
    return found
