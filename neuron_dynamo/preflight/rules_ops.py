"""Ops that a target's compiler does not take at all."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_dynamo.lowering.reading import Operation
from neuron_dynamo.preflight.published import CUSTOM_CALLS
from neuron_dynamo.preflight.rule import Fault, rule
from neuron_dynamo.target import Target


@rule("stablehlo.sort")
def sort(operation: Operation, target: Target) -> Iterator[Fault]:
    if "sort" not in target.ops:
        yield Fault("NCC_EVRF029", f"target {target.name} has no sort", "compute on the host, or sort rows that the backend can rank")


@rule("stablehlo.triangular_solve", "stablehlo.cholesky", "stablehlo.fft")
def linear_algebra(operation: Operation, target: Target) -> Iterator[Fault]:
    name = operation.name.removeprefix("stablehlo.")
    if name not in target.ops:
        yield Fault("NCC_EVRF001", f"target {target.name} has no {name}", "compute it on the host, or write it with products and sums")


@rule("stablehlo.while", "stablehlo.if", "stablehlo.case")
def control_flow(operation: Operation, target: Target) -> Iterator[Fault]:
    name = operation.name.removeprefix("stablehlo.")
    if name not in target.ops:
        yield Fault("NCC_EVRF001", f"target {target.name} is not known to take {name}", "unroll the loop, or select between both branches")


@rule("stablehlo.custom_call")
def custom_call(operation: Operation, target: Target) -> Iterator[Fault]:
    name = operation.attributes["call_target_name"]
    if name not in CUSTOM_CALLS and name not in target.custom_calls:
        yield Fault("NCC_EVRF015", f"custom call {name} is not among those published", "write it in StableHLO ops")
    if name == "AwsNeuronTopK" and operation.operands and not operation.operands[0].element.startswith(("f", "bf", "tf")):
        yield Fault("NCC_EVRF013", "AwsNeuronTopK takes floating-point numbers only", "convert to float32 first")


@rule("stablehlo.rng_bit_generator")
def random_bits(operation: Operation, target: Target) -> Iterator[Fault]:
    if "DEFAULT" not in str(operation.attributes["rng_algorithm"]):
        yield Fault("NCC_EVRF006", "a random algorithm other than the default", "use RNG_DEFAULT, or integer arithmetic")
