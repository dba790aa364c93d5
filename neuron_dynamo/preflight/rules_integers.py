"""Integers: what is refused, and what is computed in a type that does not hold every value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from neuron_dynamo.lowering.reading import Operation
from neuron_dynamo.preflight.downcasts import IN_FLOAT32, Downcast
from neuron_dynamo.preflight.rule import Fault, rule
from neuron_dynamo.target import Target

_LARGEST_32 = 2**32 - 1


def _is_integer(element: str) -> bool:
    return element.startswith(("i", "ui")) and element != "i1"


@rule("stablehlo.constant")
def constant(operation: Operation, target: Target) -> Iterator[Fault]:
    value: Any = operation.attributes["value"]
    element = operation.results[0].element
    if not isinstance(value, np.ndarray) or not value.size:
        return
    if element == "ui64" and int(value.max()) > _LARGEST_32:
        yield Fault("NCC_ESFH002", "an unsigned 64-bit constant that does not fit 32 bits", "use uint32")
    if element == "i64" and not target.wide_integers and not -(2**31) <= int(value.min()) <= int(value.max()) < 2**31:
        yield Fault("", f"a 64-bit constant, of which {target.name} keeps 32 bits", "use values that fit int32", refused=False)


@rule("stablehlo.bitcast_convert")
def halves(operation: Operation, target: Target) -> Iterator[Fault]:
    before, after = operation.operands[0].element, operation.results[0].element
    if not target.wide_integers and before != after and {before, after} & {"i64", "ui64"}:
        yield Fault("", f"the bits of 64-bit integers, of which {target.name} keeps 32", "hold the bits in 32-bit integers", refused=False)


@rule("stablehlo.shift_right_arithmetic")
def arithmetic_shift(operation: Operation, target: Target) -> Iterator[Fault]:
    if operation.operands[0].element not in ("i32", "ui32"):
        yield Fault("NCC_EVRF022", "an arithmetic right shift of other than 32 bits", "convert to int32 first")


@rule("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")
def product(operation: Operation, target: Target) -> Iterator[Fault]:
    if _is_integer(operation.operands[0].element):
        if operation.name == "stablehlo.convolution":  # the flag's word is for products of matrices; of this nothing is published
            yield Fault("NCC_EVRF035", f"a convolution of integers: {IN_FLOAT32}", "keep values below 2^24", refused=False)
            return
        yield Downcast("NCC_EVRF035", "a product of integer matrices", "keep values below 2^24", word="dot")


@rule("stablehlo.scatter")
def scatter(operation: Operation, target: Target) -> Iterator[Fault]:
    """Booleans are refused; integers are a matter of --implicit-integer-downcast.

    The vendor's pages contradict each other. NCC_EVRF016 says that no scatter combines integers or booleans. NCC_EVRF060, the newer one,
    says that integers are computed in float32 unless that flag forbids it. The flag names integers only, so that it is believed for
    them, and the older page for booleans, which nothing takes back.
    """
    element = operation.operands[0].element
    computes = any(not inner.name.endswith("return") for inner in operation.regions[0])
    if computes and element == "i1":
        yield Fault("NCC_EVRF016", "a scatter that combines booleans", "convert to float32 first")
    elif computes and _is_integer(element):
        yield Downcast("NCC_EVRF060", "a scatter that combines integers", "keep values below 2^24", word="scatter")


@rule("stablehlo.power")
def power(operation: Operation, target: Target) -> Iterator[Fault]:
    if operation.operands[0].element in ("i64", "ui64"):
        yield Downcast("NCC_EVRF062", "a 64-bit integer power", "use int32", word="pow", loss="the compiler computes it in 32 bits")
