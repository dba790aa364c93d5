"""Program -> HLO proto as neuronx-cc wants it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neuron_dynamo.errors import LoweringError, SourceLine
from neuron_dynamo.lowering.hlo import schema
from neuron_dynamo.lowering.hlo.collectives import explicit_groups
from neuron_dynamo.lowering.hlo.inlined import inlined_module
from neuron_dynamo.lowering.hlo.verify import verify
from neuron_dynamo.lowering.program import STABLEHLO_VERSION, OpSource, Program, Signature


@dataclass(frozen=True)
class HloModule:
    """An HLO module: the serialised HloModuleProto, and the rows of the Program's side table by the names of the instructions."""

    proto: bytes = field(repr=False)
    sources: dict[str, OpSource] = field(default_factory=dict, repr=False)

    def source(self, instruction: str) -> OpSource | None:
        """What the instruction called `instruction` (with or without %) came from."""
        return self.sources.get(instruction.lstrip("%"))

    def opcode_sources(self, opcode: str) -> list[OpSource]:
        """What the instructions of `opcode` came from, each once."""
        return list(dict.fromkeys(row for name, row in self.sources.items() if name.rpartition(".")[0] == opcode))


def emit(program: Program, *, custom_calls: bool = False) -> HloModule:
    """The HLO module of `program`, verified; `custom_calls` as in custom_calls.py.

    Raises LoweringError, CompilerError where XLA cannot convert it.

    Instructions carry the user's source lines, which therefore reach the NEFF and the profiler. The cache key knows nothing of them: a
    computation that another file or line compiled before is served with the lines of that one.
    """
    from neuron_dynamo import xla

    module = schema.parse(xla.hlo_proto(_numbered(program, custom_calls)))
    module.name = f"neuron_dynamo_{program.digest[:16]}"
    module.id = 0
    module.ClearField("stack_frame_index")
    _renumber(module)
    _rename(module)
    sources = _describe(module, program)
    for computation in module.computations:
        for instruction in computation.instructions:
            _settle(instruction)
    _interface(module, program.signature)
    proto = schema.serialize(module)
    verify(proto, program.signature)
    xla.check_hlo(proto)
    return HloModule(proto, sources)


def _numbered(program: Program, custom_calls: bool) -> bytes:
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo

    module = inlined_module(program.stablehlo, numbered=True, custom_calls=custom_calls)
    with module.context, ir.Location.unknown():
        text = module.operation.get_asm(large_elements_limit=None, enable_debug_info=True)
        data: bytes = _stablehlo.serialize_portable_artifact_str(text, STABLEHLO_VERSION)
    return data


def _renumber(module: Any) -> None:
    """Ids from 1, dense over the module, in program order: XLA's own hold the computation in their upper 32 bits."""
    computations = {computation.id: index for index, computation in enumerate(module.computations, 1)}
    following = 1
    for computation in module.computations:
        ids = {}
        for instruction in computation.instructions:
            ids[instruction.id] = following
            following += 1
        computation.id = computations[computation.id]
        # Within a computation, XLA refers to instructions by their whole ids or by the lower half of them.
        ids.update({old & 0xFFFFFFFF: new for old, new in ids.items()})
        for instruction in computation.instructions:
            instruction.id = ids[instruction.id]
            for name, table in (("operand_ids", ids), ("control_predecessor_ids", ids), ("called_computation_ids", computations)):
                values = getattr(instruction, name)
                values[:] = [table[value] for value in values]
        computation.root_id = ids[computation.root_id]
    module.entry_computation_id = computations[module.entry_computation_id]


def _rename(module: Any) -> None:
    """Names that follow from places: XLA's come from the numbers that the ops were marked with."""
    for computation in module.computations:
        entry = computation.id == module.entry_computation_id
        computation.name = "main" if entry else f"region_{computation.id}"
        for instruction in computation.instructions:
            instruction.name = f"p{instruction.parameter_number}" if entry and instruction.opcode == "parameter" else _name(instruction)
        parameters = [instruction for instruction in computation.instructions if instruction.opcode == "parameter"]
        parameters.sort(key=lambda parameter: parameter.parameter_number)
        computation.program_shape.parameter_names[:] = [parameter.name for parameter in parameters]
    module.entry_computation_name = "main"


def _name(instruction: Any) -> str:
    return f"{instruction.opcode}.{instruction.id}"


def _describe(module: Any, program: Program) -> dict[str, OpSource]:
    """Metadata of each instruction from the Program's side table, in place of the numbers that it carries now."""
    rows = {f"nd{row.index}": row for row in program.sources}
    sources = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            row = rows.get(instruction.metadata.op_name.rpartition("/")[2])
            instruction.ClearField("metadata")
            if row is None:
                continue
            sources[instruction.name] = row
            instruction.metadata.op_type = row.fx_op
            instruction.metadata.op_name = _op_name(row)
            if row.source is not None:
                instruction.metadata.source_file, instruction.metadata.source_line = row.source.file, row.source.line
    return sources


def _op_name(row: OpSource) -> str:
    where: SourceLine | None = row.source
    return f"{where.module}/{row.fx_node}" if where is not None and where.module else row.fx_node


def _settle(instruction: Any) -> None:
    if instruction.opcode == "custom-call":
        instruction.custom_call_api_version = schema.API_VERSION
    explicit_groups(instruction)


def _interface(module: Any, signature: Signature) -> None:
    """Shapes, names and aliases of what goes in and comes out."""
    (entry,) = [computation for computation in module.computations if computation.id == module.entry_computation_id]
    parameters = sorted((i for i in entry.instructions if i.opcode == "parameter"), key=lambda i: i.parameter_number)
    root = _own_root(module, entry)
    for parameter in parameters:
        schema.set_attribute(parameter, "neff_input_names", f"input{parameter.parameter_number}")
    schema.set_attribute(root, "neff_output_names", ",".join(f"output{index}" for index in range(len(signature.outputs))))
    for instruction in (*parameters, root):
        _dense(instruction.shape)
    shape = entry.program_shape
    shape.Clear()
    for parameter in parameters:
        shape.parameters.add().CopyFrom(parameter.shape)
        shape.parameter_names.append(parameter.name)
    shape.result.CopyFrom(root.shape)
    module.host_program_shape.CopyFrom(shape)
    module.ClearField("input_output_alias")
    several = len(signature.outputs) > 1
    for output, parameter in sorted(signature.aliases):
        if not 0 <= output < len(signature.outputs) or not 0 <= parameter < len(signature.inputs):
            raise LoweringError(f"output {output} cannot alias input {parameter}: the program has no such tensors")
    for output, parameter in signature.bound_aliases():
        place = [output] if several else []
        module.input_output_alias.entries.add(output_shape_index=place, parameter_number=parameter, kind=schema.MUST_ALIAS)


def _own_root(module: Any, entry: Any) -> Any:
    """The entry's root; a copy of it where it is a parameter, which cannot carry the names of both an input and an output."""
    (root,) = [instruction for instruction in entry.instructions if instruction.id == entry.root_id]
    if root.opcode != "parameter":
        return root
    following = 1 + max(instruction.id for computation in module.computations for instruction in computation.instructions)
    copy = entry.instructions.add(opcode="copy", id=following, operand_ids=[root.id])
    copy.name = _name(copy)
    copy.shape.CopyFrom(root.shape)
    entry.root_id = copy.id
    return copy


def _dense(shape: Any) -> None:
    """Row-major layout, and no dimension that grows."""
    for inner in shape.tuple_shapes:
        _dense(inner)
    if shape.element_type != schema.TUPLE:
        rank = len(shape.dimensions)
        shape.layout.Clear()
        shape.layout.minor_to_major[:] = range(rank - 1, -1, -1)
        shape.layout.tail_padding_alignment_in_elements = 1
        shape.is_dynamic_dimension[:] = [False] * rank
