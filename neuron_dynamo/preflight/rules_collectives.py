"""Collectives: groups of ranks, and sums of integers across them."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dynamo.lowering.reading import Operation
from neuron_dynamo.preflight.rule import Fault, rule
from neuron_dynamo.target import Target

COLLECTIVES = (
    "stablehlo.all_reduce",
    "stablehlo.all_gather",
    "stablehlo.reduce_scatter",
    "stablehlo.all_to_all",
    "stablehlo.collective_broadcast",
)


@rule(*COLLECTIVES)
def groups(operation: Operation, target: Target) -> Iterator[Fault]:
    ranks = operation.attributes.get("replica_groups")
    if getattr(ranks, "size", 1) == 0:
        yield Fault("", "a collective that does not list the ranks that take part", "give the ranks of every group")


@rule("stablehlo.all_reduce", "stablehlo.reduce_scatter")
def integers(operation: Operation, target: Target) -> Iterator[Fault]:
    element = operation.operands[0].element
    if element.startswith(("i", "ui")) and element != "i1":
        code = "NCC_EVRF061" if operation.name == "stablehlo.all_reduce" else "NCC_EVRF063"
        what = "a sum of integers across ranks: values beyond 2^24 lose digits: the compiler computes it in float32"
        yield Fault(code, what, "keep values below 2^24", refused=False)
