"""Programs for the preflight tests, written as StableHLO text."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo

from neuron_dynamo.lowering.importer import new_context
from neuron_dynamo.lowering.program import STABLEHLO_VERSION
from neuron_dynamo.preflight import Finding, check
from neuron_dynamo.target import get_target


def artifact(text: str) -> bytes:
    """The portable artifact of a module."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        return bytes(_stablehlo.serialize_portable_artifact_str(str(module), STABLEHLO_VERSION))


def main(arguments: str, body: str) -> bytes:
    """The artifact of a module with one function, which returns its first argument after `body`."""
    first = arguments.split(",%")[0].partition(":")[2].strip()
    return artifact(f"func.func @main({arguments}) -> {first} {{\n{body}\nreturn %x : {first}\n}}")


def findings(arguments: str, body: str, target: str = "trn2") -> list[Finding]:
    """What preflight finds in `main(arguments, body)`."""
    return check(main(arguments, body), get_target(target))


def codes(arguments: str, body: str, target: str = "trn2") -> list[str]:
    """The codes of refusals."""
    return [f.code for f in findings(arguments, body, target) if f.refused]


def warned(arguments: str, body: str, target: str = "trn2") -> list[str]:
    """The codes of what is not refused but loses exactness."""
    return [f.code for f in findings(arguments, body, target) if not f.refused]
