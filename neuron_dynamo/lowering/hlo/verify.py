"""Re-reads an HLO proto and holds it against every rule that the vendor publishes or its callers follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from neuron_dynamo.errors import LoweringError
from neuron_dynamo.lowering.hlo import schema
from neuron_dynamo.lowering.hlo.collectives import COLLECTIVES
from neuron_dynamo.lowering.program import Signature, TensorSpec

LARGEST_ID = 2**31 - 1
"""neuronx-cc aborts on ids that do not fit an int32."""
LARGEST_PROTO = 2**31 - 1
"""Bytes: protobuf's own limit on one message."""

ELEMENT_TYPES = {
    torch.bool: schema.PRED,
    torch.int8: schema.S8,
    torch.int16: schema.S16,
    torch.int32: schema.S32,
    torch.int64: schema.S64,
    torch.uint8: schema.U8,
    torch.uint16: schema.U16,
    torch.uint32: schema.U32,
    torch.uint64: schema.U64,
    torch.float16: schema.F16,
    torch.bfloat16: schema.BF16,
    torch.float32: schema.F32,
    torch.float64: schema.F64,
    torch.complex64: schema.C64,
    torch.complex128: schema.C128,
    torch.float8_e4m3fn: schema.F8E4M3FN,
    torch.float8_e5m2: schema.F8E5M2,
    torch.float8_e4m3fnuz: schema.F8E4M3FNUZ,
    torch.float8_e5m2fnuz: schema.F8E5M2FNUZ,
    torch.float8_e8m0fnu: schema.F8E8M0FNU,
}
"""XLA's PrimitiveType of each dtype."""


def verify(proto: bytes, signature: Signature) -> None:
    """Raises LoweringError, naming every rule that a serialised HloModuleProto breaks as a module with this signature."""
    try:
        module = schema.parse(proto)
    except ValueError as error:
        raise LoweringError(f"the HLO cannot be read back: {error}") from error
    broken = list(_faults(module, signature))
    if len(proto) > LARGEST_PROTO:
        broken.append(f"it has {len(proto):,} bytes, protobuf's limit is {LARGEST_PROTO:,}")
    if broken:
        raise LoweringError("the HLO module breaks rules of neuronx-cc's input:\n  " + "\n  ".join(broken))


def _faults(module: Any, signature: Signature) -> Iterator[str]:
    yield from _ids(module)
    yield from _names(module)
    entries = [computation for computation in module.computations if computation.id == module.entry_computation_id]
    if len(entries) != 1:
        yield f"entry_computation_id {module.entry_computation_id} names {len(entries)} computations"
        return
    if entries[0].name != module.entry_computation_name:
        yield f"entry_computation_name is {module.entry_computation_name!r}, the entry is called {entries[0].name!r}"
    for computation in module.computations:
        for instruction in computation.instructions:
            yield from _instruction(instruction)
    yield from _interface(module, entries[0], signature)
    yield from _aliases(module, signature)


def _ids(module: Any) -> Iterator[str]:
    computations = [computation.id for computation in module.computations]
    ids = [instruction.id for computation in module.computations for instruction in computation.instructions]
    for what, found in (("computation", computations), ("instruction", ids)):
        if any(not 0 <= one < LARGEST_ID for one in found):
            yield f"{what} ids reach {max(found)}, and must stay below {LARGEST_ID}"
        elif sorted(found) != list(range(1, len(found) + 1)):
            yield f"{what} ids are not dense: {len(found)} of them from {min(found, default=0)} to {max(found, default=0)}"
    earlier: set[int] = set()
    for computation in module.computations:
        made: set[int] = set()
        for instruction in computation.instructions:
            for field in ("operand_ids", "control_predecessor_ids"):
                for other in getattr(instruction, field):
                    if other not in made:
                        yield f"{field} of {instruction.name} names {other}, which does not stand before it"
            for other in instruction.called_computation_ids:
                if other not in earlier:
                    yield f"{instruction.name} calls computation {other}, which does not stand before its own"
            made.add(instruction.id)
        if computation.root_id not in made:
            yield f"root_id {computation.root_id} of {computation.name} is not among its instructions"
        earlier.add(computation.id)


def _names(module: Any) -> Iterator[str]:
    seen: set[str] = set()
    for computation in module.computations:
        for instruction in computation.instructions:
            if not instruction.name or instruction.name in seen:
                yield f"the instruction name {instruction.name!r} is not unique"
            seen.add(instruction.name)


def _instruction(instruction: Any) -> Iterator[str]:
    if instruction.opcode == "custom-call" and instruction.custom_call_api_version == 0:
        yield f"custom call {instruction.name} to {instruction.custom_call_target} has no API version"
    if instruction.opcode in COLLECTIVES and instruction.opcode != "collective-permute":
        if not any(group.replica_ids for group in instruction.replica_groups):
            yield f"{instruction.name} does not list its ranks"
        if instruction.channel_id or instruction.use_global_device_ids or instruction.HasField("collective_device_list"):
            yield f"{instruction.name} numbers its ranks by other than their plain rank"
    if any(_dynamic(shape) for shape in _arrays(instruction.shape)):
        yield f"{instruction.name} has a dimension without a fixed size"


def _interface(module: Any, entry: Any, signature: Signature) -> Iterator[str]:
    if schema.serialize(module.host_program_shape) != schema.serialize(entry.program_shape):
        yield "host_program_shape of the module is not the program_shape of its entry"
    parameters = [instruction for instruction in entry.instructions if instruction.opcode == "parameter"]
    numbers = sorted(parameter.parameter_number for parameter in parameters)
    if numbers != list(range(len(signature.inputs))):
        yield f"the entry has parameters {numbers}, for {len(signature.inputs)} inputs"
        return
    parameters.sort(key=lambda parameter: parameter.parameter_number)
    for index, (parameter, spec) in enumerate(zip(parameters, signature.inputs, strict=True)):
        yield from _shape(f"parameter {index}", parameter.shape, spec)
        if schema.attributes(parameter).get("neff_input_names") != f"input{index}":
            yield f"parameter {index} has no neff_input_names of its own"
        if index >= len(entry.program_shape.parameters) or parameter.shape != entry.program_shape.parameters[index]:
            yield f"program_shape differs from parameter {index}"
    roots = [instruction for instruction in entry.instructions if instruction.id == entry.root_id]
    if not roots:
        return
    (root,) = roots
    if root.shape != entry.program_shape.result:
        yield "program_shape differs from the root"
    tuple_root = root.shape.element_type == schema.TUPLE
    results = list(root.shape.tuple_shapes) if tuple_root else [root.shape]
    if len(results) != len(signature.outputs):
        yield f"the root has {len(results)} results, for {len(signature.outputs)} outputs"
        return
    for index, (result, spec) in enumerate(zip(results, signature.outputs, strict=True)):
        yield from _shape(f"result {index}", result, spec)
    names = schema.attributes(root).get("neff_output_names", "")
    if names != ",".join(f"output{index}" for index in range(len(results))):
        yield f"neff_output_names of the root is {names!r}"


def _aliases(module: Any, signature: Signature) -> Iterator[str]:
    several = len(signature.outputs) > 1
    seen_outputs, seen_inputs = set(), set()
    found = set()
    for entry in module.input_output_alias.entries:
        place, parameter = list(entry.output_shape_index), entry.parameter_number
        if entry.kind != schema.MUST_ALIAS:
            yield f"the alias of parameter {parameter} is not MUST_ALIAS"
        if len(place) != int(several) or list(entry.parameter_shape_index):
            yield f"the alias of parameter {parameter} has a malformed index {place}"
            continue
        output = place[0] if several else 0
        if not (0 <= output < len(signature.outputs) and 0 <= parameter < len(signature.inputs)):
            yield f"output {output} aliases parameter {parameter}: there are no such tensors"
            continue
        if signature.outputs[output] != signature.inputs[parameter]:
            yield f"output {output} aliases parameter {parameter} of another shape or type"
        if output in seen_outputs or parameter in seen_inputs:
            yield f"output {output} or parameter {parameter} is aliased twice"
        seen_outputs.add(output)
        seen_inputs.add(parameter)
        found.add((output, parameter))
    wanted = set(signature.bound_aliases())
    for output, parameter in sorted(wanted - found):
        yield f"output {output} is the new value of parameter {parameter}, but does not alias it"
    for output, parameter in sorted(found - wanted):
        yield f"output {output} aliases parameter {parameter}, which the program does not write"


def _shape(what: str, shape: Any, spec: TensorSpec) -> Iterator[str]:
    if tuple(shape.dimensions) != spec.shape or shape.element_type != ELEMENT_TYPES[spec.dtype]:
        yield f"{what} is type {shape.element_type} of shape {tuple(shape.dimensions)}, the signature says {spec.dtype} {spec.shape}"
    if list(shape.layout.minor_to_major) != list(range(len(spec.shape) - 1, -1, -1)):
        yield f"{what} is not row-major: minor_to_major {list(shape.layout.minor_to_major)}"


def _arrays(shape: Any) -> Iterator[Any]:
    if shape.tuple_shapes:
        for inner in shape.tuple_shapes:
            yield from _arrays(inner)
    else:
        yield shape


def _dynamic(shape: Any) -> bool:
    return any(shape.is_dynamic_dimension) or any(size < 0 for size in shape.dimensions)
