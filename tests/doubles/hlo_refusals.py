"""The published refusals, read off an HLO proto: written apart from neuron_dynamo's preflight, so that one checks the other."""

from __future__ import annotations

import base64
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CUSTOM_CALLS = {
    *("AwsNeuronErf", "AwsNeuronGelu", "AwsNeuronGeluApprxTanh", "AwsNeuronGeluBackward", "AwsNeuronSilu", "AwsNeuronSiluBackward"),
    *("AwsNeuronRmsNorm", "AwsNeuronSoftmax", "AwsNeuronSoftmaxBackward", "AwsNeuronCollectiveMatmul", "AwsNeuronIntMatmult"),
    *("AwsNeuronArgMax", "AwsNeuronArgMin", "AwsNeuronTopK", "AwsNeuronDropoutMaskV1", "AwsNeuronCustomNativeKernel"),
    *("AwsNeuronCustomOp", "AwsNeuronDevicePrint", "ResizeNearest", "ResizeBilinear", "ResizeNearestGrad"),
    *(f"AwsNeuronModuleMarker{place}-{way}" for place in ("Start", "End") for way in ("Forward", "Backward")),
    *("NeuronBoundaryMarker-Start", "NeuronBoundaryMarker-End", "AwsNeuronLNCShardingConstraint"),
    *("AwsNeuronTransferWithStaticRing", "QuantizeMX", "__op$block_scaled_dot"),
}
ABSENT = {"triangular-solve", "cholesky", "fft", "topk", "while", "conditional", "infeed", "outfeed", "send", "recv"}
NAMES = {1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32", 12: "f64"}
NAMES |= {15: "c64", 16: "bf16", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz"}
NAMES |= {28: "f8e4m3", 29: "f8e3m4", 32: "f4e2m1fn", 33: "f8e8m0fnu", 17: "token"}
INTEGERS = {2, 3, 4, 5, 6, 7, 8, 9}
NARROWED = {"dot": ("EVRF035", "dot"), "all-reduce": ("EVRF061", "all_reduce"), "reduce-scatter": ("EVRF063", "reduce_scatter")}
DOWNCASTS = {"dot", "scatter", "all_reduce", "reduce_scatter", "pow"}
"""Ops that need a word of --implicit-integer-downcast for their integers."""
GIB = 2**30
LARGEST_COUNT = 2**20
"""Elements up to which indices are worked out."""
Refusal = tuple[str, str, str]


def largest_id(module: Any) -> int:
    return max((instruction.id for computation in module.computations for instruction in computation.instructions), default=0)


def refusals(module: Any, flags: dict[str, str], schema: Any, release: tuple[int, ...] = (2, 27)) -> list[Refusal]:
    """(code without NCC_, text, the line of HLO) of everything that is refused, in program order."""
    return [*_module(module, schema), *_memory(module, flags), *_instructions(module, flags, schema, release)]


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


def _memory(module: Any, flags: dict[str, str]) -> Iterator[Refusal]:
    """Inputs and outputs alone: what lives between them is the business of a real compiler."""
    target = flags["--target"]
    if target == "trn3":
        return
    limit = 12 * GIB * int(flags.get("--lnc", "2")) if target == "trn2" else 16 * GIB
    shape = module.host_program_shape
    aliased = {alias.output_shape_index[0] if alias.output_shape_index else 0 for alias in module.input_output_alias.entries}
    results = [result for index, result in enumerate(shape.result.tuple_shapes or [shape.result]) if index not in aliased]
    size = sum(map(_bytes, [*shape.parameters, *results]))
    if size > limit:
        yield "EOOM001", f"inputs and outputs of {size} bytes exceed the {limit} of a logical core", ""


def _bytes(shape: Any) -> int:
    name = NAMES.get(shape.element_type, "")
    bits = re.match(r"[a-z]+(\d+)", name)
    return math.prod(shape.dimensions) * (-(-int(bits[1]) // 8) if bits else name == "pred")


def _instructions(module: Any, flags: dict[str, str], schema: Any, release: tuple[int, ...]) -> Iterator[Refusal]:
    roots = {c.id: {i.id: i for i in c.instructions}.get(c.root_id) for c in module.computations}
    for computation in module.computations:
        by_id = {instruction.id: instruction for instruction in computation.instructions}
        for instruction in computation.instructions:
            operands = [by_id.get(number) for number in instruction.operand_ids]
            yield from _instruction(instruction, operands, flags)
            if None in operands:
                continue
            line = shown(instruction, operands)
            yield from ((code, text, line) for code, text in _types(instruction, flags["--target"], release))
            combines = any(root is not None and root.opcode != "parameter" for root in map(roots.get, instruction.called_computation_ids))
            yield from ((code, text, line) for code, text in _integers(instruction, operands, flags, combines))
            if instruction.opcode == "custom-call":
                yield from ((code, text, line) for code, text in _custom_call(instruction, operands))
            if instruction.opcode == "dynamic-update-slice":
                yield from ((code, text, line) for code, text in _starts(operands, schema))
            if instruction.opcode in ("gather", "scatter"):
                yield from ((code, text, line) for code, text in _indices(instruction, by_id, schema))


def _integers(instruction: Any, operands: list[Any], flags: dict[str, str], combines: bool) -> Iterator[tuple[str, str]]:
    opcode, element = instruction.opcode, operands[0].shape.element_type if operands else 0
    words = set(flags.get("--implicit-integer-downcast", "all").split(","))
    allowed = DOWNCASTS if words & {"all", "default"} else words
    if opcode in NARROWED and element in INTEGERS and NARROWED[opcode][1] not in allowed:
        yield NARROWED[opcode][0], f"integer {opcode}"
    if opcode == "power" and element in (5, 9) and "pow" not in allowed:
        yield "EVRF062", "64-bit integer power"
    if opcode == "scatter" and combines and element == 1:
        yield "EVRF016", "scatter-reduce of a boolean data type"
    if opcode == "scatter" and combines and element in INTEGERS and "scatter" not in allowed:
        yield "EVRF060", "integer scatter with a computation"


def _custom_call(instruction: Any, operands: list[Any]) -> Iterator[tuple[str, str]]:
    name, text = instruction.custom_call_target, instruction.backend_config
    if name == "AwsNeuronCustomNativeKernel":
        try:
            binary = Path(json.loads(base64.b64decode(text, validate=True))["klir_binary"]["binary"])
        except (ValueError, KeyError, TypeError):
            return
        if not binary.exists() and not Path(binary.parent.name, binary.name).exists():
            yield "EVRF059", f"the artifact {binary} is referenced in the HLO/StableHLO input graph, but is missing"
    if name == "QuantizeMX":
        # Which of the codes from 036 on stands for which condition is not known.
        yield from (("EVRF036", f"QuantizeMX: {why}") for why in _quantize(instruction, operands))


def _quantize(instruction: Any, operands: list[Any]) -> Iterator[str]:
    try:
        config = dict(json.loads(instruction.backend_config))
    except (ValueError, TypeError):
        config = {}
    if config.get("dtype") not in ("float8_e5m2", "float8_e4m3fn"):
        yield "dtype must be float8_e5m2 or float8_e4m3fn"
        return
    if len(operands) != 1 or operands[0].shape.element_type not in (10, 16):
        yield "takes one operand, BF16 or F16"
        return
    sizes, dim = list(operands[0].shape.dimensions), config.get("dim", 0)
    if config.get("block_size", 32) != 32 or config.get("scale_method", "EMAX") != "EMAX":
        yield "block_size must be 32, scale_method EMAX"
    if dim not in {d for d in (-1, -2, len(sizes) - 1, len(sizes) - 2) if -len(sizes) <= d < len(sizes)}:
        yield "dim must be the last or second-to-last"
    elif sizes[dim] % 4:
        yield "the size of dim must be a multiple of 4"
    if len(instruction.shape.tuple_shapes) != 2:
        yield "returns a tuple of 2"


def _starts(operands: list[Any], schema: Any) -> Iterator[tuple[str, str]]:
    """Constant starts of an update, against the sizes of the dims; a dynamic slice by constants is a slice by the time it is HLO."""
    written, update, *starts = operands
    for dim, (start, size, whole) in enumerate(zip(starts, update.shape.dimensions, written.shape.dimensions, strict=True)):
        value = _scalar(start, schema)
        if value is not None and not 0 <= value <= whole - size:
            yield "ESMP002", f"constant index {value} is out of bounds of dimension {dim}"


def _scalar(instruction: Any, schema: Any) -> int | None:
    """The value of a scalar constant of 32 or 64 bits."""
    if instruction.opcode != "constant" or instruction.shape.element_type not in (4, 5, 8, 9) or instruction.shape.dimensions:
        return None
    literal = fields(schema.serialize(instruction.literal))
    field = {4: 4, 5: 5, 8: 6, 9: 7}[instruction.shape.element_type]
    (value,) = integers(literal[field])
    return value - 2**64 if value >= 2**63 and field in (4, 5) else value


def _indices(instruction: Any, by_id: dict[int, Any], schema: Any) -> Iterator[tuple[str, str]]:
    """Indices that are worked out from iotas, against the sizes of the dims that they index."""
    scatters = instruction.opcode == "scatter"
    described = fields(fields(schema.serialize(instruction))[48 if scatters else 33][0])
    dims, vector = integers(described[3]), (described[4] or [0])[0]
    place = len(instruction.operand_ids) // 2
    indices = _counted(by_id[instruction.operand_ids[place]], by_id, schema)
    if indices is None or not indices.size:
        return
    if vector == indices.ndim:
        indices = indices[..., None]
    sizes = by_id[instruction.operand_ids[0]].shape.dimensions
    for component, dim in enumerate(dims):
        if indices.take(component, axis=vector).max() >= sizes[dim]:
            code = "EVRF031" if scatters else "EVRF056"
            yield code, f"{instruction.opcode} out of bounds: the iota indices are beyond the size of operand dimension {dim}"


def _counted(instruction: Any, by_id: dict[int, Any], schema: Any) -> Any:
    """The values of what comes from an iota as an array, -1 standing for what is not known; None where nothing is."""
    import numpy as np

    sizes, opcode = tuple(instruction.shape.dimensions), instruction.opcode
    if math.prod(sizes) > LARGEST_COUNT or opcode not in ("iota", "convert", "reshape", "broadcast", "transpose", "concatenate"):
        return None
    dims = integers(fields(schema.serialize(instruction))[14])
    if opcode == "iota":
        shape = [size if dim == dims[0] else 1 for dim, size in enumerate(sizes)]
        return np.broadcast_to(np.arange(sizes[dims[0]]).reshape(shape), sizes)
    operands = [by_id[number] for number in instruction.operand_ids]
    given = [_counted(operand, by_id, schema) for operand in operands]
    if opcode == "concatenate":
        known = [np.full(tuple(o.shape.dimensions), -1) if v is None else v for o, v in zip(operands, given, strict=True)]
        return np.concatenate(known, axis=dims[0])
    if given[0] is None:
        return None
    if opcode == "transpose":
        return given[0].transpose(dims)
    if opcode == "broadcast":
        kept = [size if dim in dims else 1 for dim, size in enumerate(sizes)]
        return np.broadcast_to(given[0].reshape(kept), sizes)
    return given[0].reshape(sizes)


def fields(data: bytes) -> dict[int, list[Any]]:
    """Values by field number of a message in protobuf's wire format: integers, and bytes of what has a length."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind in (0, 2):
            value, at = _varint(data, at)
            found[key >> 3].append(data[at : at + value] if kind == 2 else value)
            at += value if kind == 2 else 0
        else:
            at += {1: 8, 5: 4}[kind]
    return found


def integers(values: list[Any]) -> list[int]:
    """A repeated integer field, packed or not."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(number)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _instruction(instruction: Any, operands: list[Any], flags: dict[str, str]) -> Iterator[Refusal]:
    target, opcode, line = flags["--target"], instruction.opcode, shown(instruction, operands)
    if None in operands:
        yield "EVRF064", "an operand stands nowhere before its use", line
        return
    element = instruction.shape.element_type
    source = operands[0].shape.element_type if operands else element
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


def _types(instruction: Any, target: str, release: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    for element in {shape.element_type for shape in (instruction.shape.tuple_shapes or [instruction.shape])}:
        name = NAMES.get(element, "tuple")
        if name == "f64":
            yield "ESPP004", "f64 has no code generation"
        elif name == "c128" or (name == "c64" and release < (2, 27)):
            yield "EVRF004", "complex data types are not supported"
        elif name.endswith("fnuz"):
            yield "EVRF005", f"{name} is not supported"
        elif name == "f8e4m3fn" and target != "trn3":
            yield "EVRF051", f"{name} is not supported on {target}"
        elif name == "f4e2m1fn":
            yield "ESPP004", f"{name} has no code generation"
        elif name == "f8e8m0fnu" and target != "trn3":
            yield "ESPP047", f"{name} is not a supported FP8 data type"


def shown(instruction: Any, operands: list[Any]) -> str:
    """The instruction as HLO text, as far as it matters here."""
    shape = instruction.shape
    sizes = ",".join(map(str, shape.dimensions))
    layout = ",".join(map(str, shape.layout.minor_to_major))
    kind = f"{NAMES.get(shape.element_type, 'tuple')}[{sizes}]{{{layout}}}" if shape.element_type != 13 else "(...)"
    given = ", ".join(f"%{operand.name}" if operand is not None else "?" for operand in operands)
    return f"%{instruction.name} = {kind} {instruction.opcode}({given})"
