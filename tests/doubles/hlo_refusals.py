"""The published refusals, read off an HLO proto: written apart from neuron_dynamo's preflight, so that one checks the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CUSTOM_CALLS = {
    *("AwsNeuronErf", "AwsNeuronGelu", "AwsNeuronGeluApprxTanh", "AwsNeuronGeluBackward", "AwsNeuronSilu", "AwsNeuronSiluBackward"),
    *("AwsNeuronRmsNorm", "AwsNeuronSoftmax", "AwsNeuronSoftmaxBackward", "AwsNeuronCollectiveMatmul", "AwsNeuronIntMatmult"),
    *("AwsNeuronArgMax", "AwsNeuronArgMin", "AwsNeuronTopK", "AwsNeuronDropoutMaskV1", "AwsNeuronCustomNativeKernel"),
    *("AwsNeuronCustomOp", "AwsNeuronDevicePrint", "ResizeNearest", "ResizeBilinear", "ResizeNearestGrad"),
    *("AwsNeuronLNCShardingConstraint", "AwsNeuronTransferWithStaticRing", "QuantizeMX", "__op$block_scaled_dot"),
}
ABSENT = {"triangular-solve", "cholesky", "fft", "topk", "while", "conditional", "infeed", "outfeed", "send", "recv"}
NAMES = {1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32", 12: "f64"}
NAMES |= {15: "c64", 16: "bf16", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz"}
NAMES |= {28: "f8e4m3", 29: "f8e3m4", 32: "f4e2m1fn", 33: "f8e8m0fnu", 17: "token"}
INTEGERS = {2, 3, 4, 5, 6, 7, 8, 9}
Refusal = tuple[str, str, str]


def largest_id(module: Any) -> int:
    return max((instruction.id for computation in module.computations for instruction in computation.instructions), default=0)


def refusals(module: Any, flags: dict[str, str], schema: Any) -> list[Refusal]:
    """(code without NCC_, text, the line of HLO) of everything that is refused, in program order."""
    return [*_module(module, schema), *(found for made in _instructions(module, flags) for found in made)]


def _module(module: Any, schema: Any) -> Iterator[Refusal]:
    entries = [computation for computation in module.computations if computation.id == module.entry_computation_id]
    if len(entries) != 1 or entries[0].name != module.entry_computation_name:
        yield "EVRF064", "the module names no entry computation", ""
        return
    (entry,) = entries
    if schema.serialize(entry.program_shape) != schema.serialize(module.host_program_shape):
        yield "EVRF064", "program_shape of the entry differs from host_program_shape", ""
    results = list(entry.program_shape.result.tuple_shapes) or [entry.program_shape.result]
    for alias in module.input_output_alias.entries:
        index = alias.output_shape_index[0] if alias.output_shape_index else 0
        if index >= len(results) or alias.parameter_number >= len(entry.program_shape.parameters):
            yield "EVRF064", f"the alias of parameter {alias.parameter_number} names no tensor", ""
        elif results[index].dimensions != entry.program_shape.parameters[alias.parameter_number].dimensions:
            yield "EVRF064", f"the alias of parameter {alias.parameter_number} joins tensors of two shapes", ""
        elif alias.kind != 2:
            yield "EVRF064", f"the alias of parameter {alias.parameter_number} is not MUST_ALIAS", ""


def _instructions(module: Any, flags: dict[str, str]) -> Iterator[Iterator[Refusal]]:
    for computation in module.computations:
        by_id = {instruction.id: instruction for instruction in computation.instructions}
        for instruction in computation.instructions:
            yield _instruction(instruction, [by_id.get(number) for number in instruction.operand_ids], flags)


def _instruction(instruction: Any, operands: list[Any], flags: dict[str, str]) -> Iterator[Refusal]:
    target, opcode, line = flags["--target"], instruction.opcode, shown(instruction, operands)
    if None in operands:
        yield "EVRF064", "an operand stands nowhere before its use", line
        return
    element = instruction.shape.element_type
    source = operands[0].shape.element_type if operands else element
    yield from ((code, text, line) for code, text in _types(instruction, target))
    if any(instruction.shape.is_dynamic_dimension):
        yield "EMOD025", "dynamic shapes are not supported", line
    if opcode == "sort" and target in ("trn2", "trn3"):
        advice = "Use supported equivalent operation like TopK"
        yield "EVRF029", f"Operation sort is not supported on {target}. {advice} or NKI to implement your workload.", line
    if opcode in ABSENT:
        yield "EVRF001", f"Operator {opcode} is not supported", line
    if opcode == "custom-call":
        if instruction.custom_call_target not in CUSTOM_CALLS:
            yield "EVRF015", f"custom_call target {instruction.custom_call_target} is not supported", line
        if instruction.custom_call_api_version == 0:
            yield "EVRF064", "Unknown custom-call API version enum value: 0", line
        if instruction.custom_call_target == "AwsNeuronTopK" and source in INTEGERS:
            yield "EVRF013", "TopK does not support integers", line
    if opcode == "rng-bit-generator" and instruction.rng_algorithm != 0:
        yield "EVRF006", "the RNG algorithm must be RNG_DEFAULT", line
    if opcode == "shift-right-arithmetic" and element not in (4, 8):
        yield "EVRF022", "shift-right-arithmetic needs 32 bits", line
    if opcode == "reduce-window" and len(operands) != 2:
        yield "EVRF019", "reduce-window takes one input and one initial value", line
    if opcode == "constant" and element == 9 and any(value >= 2**32 for value in instruction.literal.u64s):
        yield "ESFH002", "a u64 constant does not fit 32 bits", line
    if opcode == "dot" and source in INTEGERS and flags.get("--implicit-integer-downcast") == "none":
        yield "EVRF035", "integer dot", line
    windows = instruction.window.dimensions
    base, kernel = any(w.base_dilation > 1 for w in windows), any(w.window_dilation > 1 for w in windows)
    if opcode == "reduce-window" and base:
        yield "EVRF017", "base dilation", line
    if opcode == "reduce-window" and kernel:
        yield "EVRF018", "window dilation", line
    if opcode == "convolution" and base and kernel:
        yield "EVRF010", "input and kernel dilation", line
    if opcode == "convolution" and base and any(w.stride > 1 for w in windows):
        yield "EVRF011", "input dilation and strides", line
    if opcode in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all") and not instruction.replica_groups:
        yield "EVRF064", f"{opcode} without replica groups", line


def _types(instruction: Any, target: str) -> Iterator[tuple[str, str]]:
    for element in {shape.element_type for shape in (instruction.shape.tuple_shapes or [instruction.shape])}:
        name = NAMES.get(element, "tuple")
        if name == "f64":
            yield "ESPP004", "f64 has no code generation"
        elif name in ("c64", "c128"):
            yield "EVRF004", "complex data types are not supported"
        elif name.endswith("fnuz"):
            yield "EVRF005", f"{name} is not supported"
        elif name == "f8e4m3fn" and target != "trn3":
            yield "EVRF051", f"{name} is not supported on {target}"
        elif name in ("f4e2m1fn", "f8e8m0fnu"):
            yield "ESPP004", f"{name} has no code generation"


def shown(instruction: Any, operands: list[Any]) -> str:
    """The instruction as HLO text, as far as it matters here."""
    shape = instruction.shape
    sizes = ",".join(map(str, shape.dimensions))
    layout = ",".join(map(str, shape.layout.minor_to_major))
    kind = f"{NAMES.get(shape.element_type, 'tuple')}[{sizes}]{{{layout}}}" if shape.element_type != 13 else "(...)"
    given = ", ".join(f"%{operand.name}" if operand is not None else "?" for operand in operands)
    return f"%{instruction.name} = {kind} {instruction.opcode}({given})"
