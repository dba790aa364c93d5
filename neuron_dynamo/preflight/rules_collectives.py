"""Collectives: groups of ranks, and sums of integers across them."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dynamo.lowering.reading import Operation
from neuron_dynamo.preflight.downcasts import Downcast
from neuron_dynamo.preflight.rule import Fault, rule
from neuron_dynamo.target import Target

COLLECTIVES = (
    "stablehlo.all_reduce",
    "stablehlo.all_gather",
    "stablehlo.reduce_scatter",
    "stablehlo.all_to_all",
    "stablehlo.collective_broadcast",
)
_KNOWN_BODIES = ("add", "maximum", "minimum")


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
        word = operation.name.removeprefix("stablehlo.")
        yield Downcast(code, "a sum of integers across ranks", "keep values below 2^24", word=word)


@rule("stablehlo.all_reduce")
def bodies(operation: Operation, target: Target) -> Iterator[Fault]:
    """The vendor's own code reduces across ranks by these only; nothing says that others are refused."""
    body = [inner.name.removeprefix("stablehlo.") for inner in operation.regions[0] if not inner.name.endswith("return")]
    if len(body) != 1 or body[0] not in _KNOWN_BODIES:
        what = f"a reduction across ranks by {', '.join(body) or 'nothing'}; only {', '.join(_KNOWN_BODIES)} are known to be taken"
        yield Fault("", what, "gather the ranks' values and reduce them locally", refused=False)
