"""Element types and shapes that a target lacks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from neuron_dynamo.lowering.reading import Operation, Type
from neuron_dynamo.preflight.rule import ANY, Fault, rule
from neuron_dynamo.target import Target

_WITHOUT_TORCH = frozenset({"f8E4M3", "f8E3M4"})
"""Types of the hardware that torch has no name for."""
_INDICES = frozenset({"index", "!stablehlo.token"})


@rule(ANY)
def element_types(operation: Operation, target: Target) -> Iterator[Fault]:
    for element in dict.fromkeys(t.element for t in (*operation.operands, *operation.results)):
        if fault := _element(element, target):
            yield fault


def _element(element: str, target: Target) -> Fault | None:
    dtype = Type((), element).dtype
    if dtype in target.dtypes or element in _WITHOUT_TORCH or element in _INDICES or dtype == torch.uint64:
        return None
    if element.startswith("complex<"):
        return _complex(element, target)
    if element.endswith("FNUZ"):
        return Fault("NCC_EVRF005", f"target {target.name} has no {element}", "use float8_e5m2, or a 16-bit type")
    if element == "f8E4M3FN":
        return Fault("NCC_EVRF051", f"target {target.name} has no {element}", "use float8_e5m2, or trn3, or a 16-bit type")
    if element == "f8E8M0FNU" and torch.float8_e4m3fn in target.dtypes:  # both are OCP formats
        return Fault("", f"{element}, of which nothing is published for {target.name}", "keep scales as uint8", refused=False)
    if element.startswith("f8"):
        return Fault("NCC_ESPP047", f"target {target.name} has no {element}", "use float8_e5m2, or float16")
    return Fault("NCC_ESPP004", f"target {target.name} has no {element}", "use a narrower type, such as float32 in place of float64")


def _complex(element: str, target: Target) -> Fault:
    remedy = "compute on real and imaginary parts"
    if element == "complex<f32>":
        what = "complex64, which compilers before SDK 2.32 refuse, and later ones take in some thirty ops, of which no list is at hand"
        return Fault("NCC_EVRF004", what, remedy, refused=False)
    return Fault("NCC_EVRF004", f"target {target.name} has no {element}", remedy)


@rule(ANY)
def static_shapes(operation: Operation, target: Target) -> Iterator[Fault]:
    if any(n is None for t in (*operation.operands, *operation.results) for n in t.shape):
        yield Fault("NCC_EMOD025", "a size that is known only at run time", "compile with dynamic=False; pad to a few fixed sizes")
