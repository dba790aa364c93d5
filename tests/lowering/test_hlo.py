"""HLO and StableHLO as neuronx-cc gets them: every rule of its input holds, the verifier sees each one broken, and the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from neuron_dynamo import xla
from neuron_dynamo.compilers.neuronx.emulation import host_form
from neuron_dynamo.errors import CompilerError, LoweringError, SourceLine
from neuron_dynamo.lowering.hlo import HloModule, bytecode, emit, schema, verify
from neuron_dynamo.lowering.hlo.collectives import explicit_groups
from neuron_dynamo.lowering.program import OpSource, Program, Signature, TensorSpec
from neuron_dynamo.runtime.host import HostExecutable
from tests.host_programs import artifact, build, program, spec

MLP = """
func.func @main(%x: tensor<2x3xf32>, %w: tensor<3x4xf32>) -> (tensor<2x4xf32>, tensor<2xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  %1 = call @square(%0) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = stablehlo.composite "vendor.square" %1 {decomposition = @square} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %3 = stablehlo.constant dense<0.0> : tensor<f32>
  %4 = stablehlo.reduce(%2 init: %3) applies stablehlo.add across dimensions = [1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32>
  return %2, %4 : tensor<2x4xf32>, tensor<2xf32>
}
func.func private @square(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}"""
SOURCES = tuple(OpSource(i, "", f"node_{i}", f"aten.op{i}.default", SourceLine("model.py", 10 + i, "block")) for i in range(6))


@pytest.fixture(scope="module")
def mlp() -> Program:
    return Program(artifact(MLP), Signature((spec(2, 3), spec(3, 4)), (spec(2, 4), spec(2))), SOURCES)


@pytest.fixture(scope="module")
def module(mlp: Program) -> HloModule:
    return emit(mlp)


def entry_of(parsed: Any) -> Any:
    (entry,) = [c for c in parsed.computations if c.id == parsed.entry_computation_id]
    return entry


def test_ids_are_dense_and_small(module):
    parsed = schema.parse(module.proto)
    ids = [i.id for c in parsed.computations for i in c.instructions]
    assert ids == list(range(1, len(ids) + 1))
    assert [c.id for c in parsed.computations] == [1, 2]
    entry = entry_of(parsed)
    reduce = next(i for i in entry.instructions if i.opcode == "reduce")
    assert list(reduce.called_computation_ids) == [1]
    assert entry.root_id == ids[-1]
    names = {i.id: i.name for i in entry.instructions}
    assert names[reduce.operand_ids[0]].startswith("multiply.")


def test_interface(module):
    parsed = schema.parse(module.proto)
    entry = entry_of(parsed)
    assert (parsed.entry_computation_name, entry.name) == ("main", "main")
    assert parsed.host_program_shape == entry.program_shape
    assert list(entry.program_shape.parameter_names) == ["p0", "p1"]
    assert [list(p.dimensions) for p in entry.program_shape.parameters] == [[2, 3], [3, 4]]
    assert [list(r.layout.minor_to_major) for r in entry.program_shape.result.tuple_shapes] == [[1, 0], [0]]
    parameters = [i for i in entry.instructions if i.opcode == "parameter"]
    assert [schema.attributes(p)["neff_input_names"] for p in parameters] == ["input0", "input1"]
    (root,) = [i for i in entry.instructions if i.id == entry.root_id]
    assert schema.attributes(root) == {"neff_output_names": "output0,output1"}


def test_calls_and_composites_are_inlined(module):
    opcodes = [i.opcode for i in entry_of(schema.parse(module.proto)).instructions]
    assert opcodes.count("multiply") == 2 and "call" not in opcodes


def test_it_computes_what_the_program_does(mlp, module):
    executable = HostExecutable(xla.compile(xla.stablehlo_of_hlo(module.proto)), mlp.signature)
    x, w = torch.randn(2, 3), torch.randn(3, 4)
    ours, theirs = executable([x, w]), build(mlp)([x, w])
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    torch.testing.assert_close(ours[1], (x @ w).pow(4).sum(1))


def test_the_users_lines(module):
    entry = entry_of(schema.parse(module.proto))
    lines = {i.opcode: (i.metadata.op_type, i.metadata.op_name, i.metadata.source_file, i.metadata.source_line) for i in entry.instructions}
    assert lines["dot"] == ("aten.op0.default", "block/node_0", "model.py", 10)
    multiplies = [i for i in entry.instructions if i.opcode == "multiply"]
    assert [i.metadata.source_line for i in multiplies] == [11, 12]  # the call's, and the composite's
    assert module.source(f"%{multiplies[1].name}") == SOURCES[2]
    assert module.opcode_sources("dot") == [SOURCES[0]] and module.source("unheard.1") is None


def test_the_users_lines_change_nothing_else(mlp, module):
    other = replace(mlp, sources=tuple(replace(row, source=SourceLine("elsewhere.py", 1)) for row in SOURCES))
    assert other.digest == mlp.digest
    assert emit(mlp).proto == module.proto
    stripped = []
    for proto in (module.proto, emit(other).proto, emit(replace(mlp, sources=())).proto):
        parsed = schema.parse(proto)
        for computation in parsed.computations:
            for instruction in computation.instructions:
                instruction.ClearField("metadata")
        stripped.append(schema.serialize(parsed))
    assert stripped[0] == stripped[1] == stripped[2]
    assert b"elsewhere" not in module.proto


def two_results(*aliases: tuple[int, int]) -> Program:
    of = spec(4)
    made = program([of, of, spec(2)], "%0 = stablehlo.add %a0, %a1 : tensor<4xf32>", ["%0", "%a1"], [of, of])
    return replace(made, signature=replace(made.signature, aliases=aliases))


def test_aliases():
    parsed = schema.parse(emit(two_results((0, 0))).proto)
    (alias,) = parsed.input_output_alias.entries
    assert (list(alias.output_shape_index), alias.parameter_number, alias.kind) == ([0], 0, 2)
    hlo = xla.compile(xla.stablehlo_of_hlo(schema.serialize(parsed)))
    assert xla.donated_parameters(hlo) == (0,)


def test_alias_of_another_shape_is_left_out():
    assert not schema.parse(emit(two_results((0, 2))).proto).input_output_alias.entries


def test_alias_of_no_tensor():
    with pytest.raises(LoweringError, match="output 5 cannot alias input 0"):
        emit(two_results((5, 0)))


def single_result(body: str, result: str, *aliases: tuple[int, int]) -> Any:
    made = program([spec(4)], body, [result], [spec(4)])
    return schema.parse(emit(replace(made, signature=replace(made.signature, aliases=aliases))).proto)


def test_a_single_result_is_no_tuple():
    parsed = single_result("%0 = stablehlo.negate %a0 : tensor<4xf32>", "%0", (0, 0))
    assert list(entry_of(parsed).program_shape.result.dimensions) == [4]
    assert list(parsed.input_output_alias.entries[0].output_shape_index) == []


def test_an_input_that_is_the_result_is_copied():
    entry = entry_of(single_result("", "%a0"))
    assert [i.opcode for i in entry.instructions] == ["parameter", "copy"]
    assert schema.attributes(entry.instructions[0]) == {"neff_input_names": "input0"}
    assert schema.attributes(entry.instructions[1]) == {"neff_output_names": "output0"}


def test_custom_calls_have_an_api_version():
    text = '%0 = stablehlo.custom_call @AwsNeuronSoftmax(%a0) {backend_config = "0"} : (tensor<4xf32>) -> tensor<4xf32>'
    (call,) = [i for i in entry_of(single_result(text, "%0")).instructions if i.opcode == "custom-call"]
    assert (call.custom_call_target, call.custom_call_api_version, call.backend_config) == ("AwsNeuronSoftmax", 2, b"0")


def test_collectives_list_their_ranks():
    text = """%0 = "stablehlo.all_reduce"(%a0) ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        use_global_device_ids} : (tensor<4xf32>) -> tensor<4xf32>"""
    (reduce,) = [i for i in entry_of(single_result(text, "%0")).instructions if i.opcode == "all-reduce"]
    assert [list(g.replica_ids) for g in reduce.replica_groups] == [[0, 1], [2, 3]]
    assert not reduce.channel_id and not reduce.use_global_device_ids and not reduce.HasField("collective_device_list")


def test_ranks_given_as_a_formula():
    instruction = schema.module().computations.add().instructions.add(opcode="all-gather")
    iota = instruction.collective_device_list.iota_replica_group_list
    iota.num_replica_groups, iota.num_devices_per_group = 2, 4
    iota.iota_reshape_dims[:], iota.iota_transpose_perm[:] = [4, 2], [1, 0]
    explicit_groups(instruction)
    assert [list(g.replica_ids) for g in instruction.replica_groups] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def large_id(parsed: Any) -> None:
    parsed.computations[0].instructions[0].id = 2**31


def sparse_id(parsed: Any) -> None:
    entry = entry_of(parsed)
    entry.instructions[-1].id = entry.root_id = 1000


def late_operand(parsed: Any) -> None:
    entry = entry_of(parsed)
    next(i for i in entry.instructions if i.opcode == "dot").operand_ids[0] = entry.root_id


def late_callee(parsed: Any) -> None:
    next(i for i in entry_of(parsed).instructions if i.opcode == "reduce").called_computation_ids[0] = 2


def lost_root(parsed: Any) -> None:
    entry_of(parsed).root_id = 1


def lost_entry(parsed: Any) -> None:
    parsed.entry_computation_id = 7


def other_entry_name(parsed: Any) -> None:
    parsed.entry_computation_name = "start"


def other_host_shape(parsed: Any) -> None:
    parsed.host_program_shape.parameters[0].dimensions[0] = 5


def column_major(parsed: Any) -> None:
    entry_of(parsed).instructions[0].shape.layout.minor_to_major[:] = [0, 1]


def growing(parsed: Any) -> None:
    entry_of(parsed).instructions[0].shape.is_dynamic_dimension[0] = True


def other_shape(parsed: Any) -> None:
    entry_of(parsed).instructions[0].shape.dimensions[0] = 9


def lost_parameter(parsed: Any) -> None:
    entry_of(parsed).instructions[0].parameter_number = 4


def lost_names(parsed: Any) -> None:
    entry = entry_of(parsed)
    entry.instructions[0].ClearField("frontend_attributes")
    entry.instructions[-1].ClearField("frontend_attributes")


def twice_named(parsed: Any) -> None:
    entry_of(parsed).instructions[0].name = entry_of(parsed).instructions[1].name


def unversioned_call(parsed: Any) -> None:
    dot = next(i for i in entry_of(parsed).instructions if i.opcode == "dot")
    dot.opcode, dot.custom_call_target = "custom-call", "AwsNeuronErf"


def groupless(parsed: Any) -> None:
    dot = next(i for i in entry_of(parsed).instructions if i.opcode == "dot")
    dot.opcode, dot.channel_id = "all-reduce", 3


def may_alias(parsed: Any) -> None:
    parsed.input_output_alias.entries.add(output_shape_index=[0], parameter_number=0, kind=1)


def odd_alias(parsed: Any) -> None:
    parsed.input_output_alias.entries.add(output_shape_index=[0], parameter_number=0, kind=2)


BROKEN: list[tuple[Callable[[Any], None], str]] = [
    (large_id, "instruction ids reach 2147483648"),
    (sparse_id, "instruction ids are not dense"),
    (late_operand, "which does not stand before it"),
    (late_callee, "calls computation 2"),
    (lost_root, "root_id 1 of main is not among"),
    (lost_entry, "entry_computation_id 7 names 0"),
    (other_entry_name, "entry_computation_name is 'start'"),
    (other_host_shape, "host_program_shape"),
    (column_major, "parameter 0 is not row-major"),
    (growing, "p0 has a dimension without a fixed size"),
    (other_shape, "the signature says"),
    (lost_parameter, "has parameters [1, 4], for 2 inputs"),
    (lost_names, "parameter 0 has no neff_input_names"),
    (lost_names, "neff_output_names of the root is ''"),
    (twice_named, "'p1' is not unique"),
    (unversioned_call, "to AwsNeuronErf has no API version"),
    (groupless, "does not list its ranks"),
    (groupless, "numbers its ranks by other than"),
    (may_alias, "is not MUST_ALIAS"),
    (odd_alias, "aliases parameter 0 of another shape"),
]


@pytest.mark.parametrize(("damage", "says"), BROKEN, ids=[f"{d.__name__}-{i}" for i, (d, _) in enumerate(BROKEN)])
def test_the_verifier_sees(damage, says, mlp, module):
    verify(module.proto, mlp.signature)
    parsed = schema.parse(module.proto)
    damage(parsed)
    with pytest.raises(LoweringError) as caught:
        verify(schema.serialize(parsed), mlp.signature)
    assert says in str(caught.value)


def test_the_verifier_misses_an_alias(mlp, module):
    of = spec(2, 4)
    wanted = Signature((spec(2, 3), of), (of, spec(2)), ((0, 1),))
    with pytest.raises(LoweringError, match="output 0 is the new value of parameter 1, but does not alias it"):
        verify(module.proto, wanted)


def test_bytes_that_are_no_module(mlp):
    with pytest.raises(LoweringError, match="cannot be read back"):
        verify(b"\xff\xff\xff", mlp.signature)
    with pytest.raises(CompilerError, match="XLA does not take the HLO module"):
        xla.check_hlo(b"\xff\xff\xff")


def read_bytecode(data: bytes) -> str:
    from torch_mlir import ir

    from neuron_dynamo.lowering.importer import new_context

    with new_context() as context:
        context.allow_unregistered_dialects = True
        return str(ir.Module.parse(data).operation.get_asm(enable_debug_info=True))


def test_bytecode_is_one_function_without_places(mlp):
    data = bytecode(replace(mlp, signature=replace(mlp.signature, aliases=())))
    assert data.startswith(b"ML\xefR")
    text = read_bytecode(data)
    assert text.count("func.func") == 1 and "func.func @main(" in text and "composite" not in text
    assert "model.py" not in text and '"nd' not in text and "mhlo" not in text
    assert bytecode(mlp) == data


def test_bytecode_aliases():
    text = read_bytecode(bytecode(two_results((1, 1), (0, 2))))
    alias = 'alias = {kind = "must_alias", parameter_index = array<i64>, parameter_number = 1 : si64}'
    assert f"mhlo.input_output_alias = [{{{alias}, output_index = array<i64: 1>}}]" in text
    made = program([spec(4)], "%0 = stablehlo.negate %a0 : tensor<4xf32>", ["%0"], [spec(4)])
    text = read_bytecode(bytecode(replace(made, signature=replace(made.signature, aliases=((0, 0),)))))
    assert "parameter_number = 0 : si64}, output_index = array<i64>" in text


def test_bytecode_refuses_float64():
    of = spec(4, dtype=torch.float64)
    with pytest.raises(LoweringError, match="holds float64"):
        bytecode(program([of], "%0 = stablehlo.negate %a0 : tensor<4xf64>", ["%0"], [of]))


def test_bytecode_refuses_a_program_without_results():
    with pytest.raises(LoweringError, match="without results"):
        bytecode(program([spec(4)], "", [], []))


def test_bytecode_literals_are_dense():
    values = ", ".join(map(str, range(3000)))
    body = f"%0 = stablehlo.constant dense<[{values}]> : tensor<3000xi32>\n%1 = stablehlo.add %a0, %0 : tensor<3000xi32>"
    of = TensorSpec((3000,), torch.int32)
    assert "dense_resource" not in read_bytecode(bytecode(program([of], body, ["%1"], [of])))


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16, torch.int8])
def test_products_of_narrow_types_run_on_the_host(narrow):
    wide = torch.float32 if narrow.is_floating_point else torch.int32
    kinds = {torch.bfloat16: "bf16", torch.float16: "f16", torch.int8: "i8", torch.float32: "f32", torch.int32: "i32"}
    of, to = spec(3, 3, dtype=narrow), spec(3, 3, dtype=wide)
    types = f"(tensor<3x3x{kinds[narrow]}>, tensor<3x3x{kinds[narrow]}>) -> tensor<3x3x{kinds[wide]}>"
    made = program([of, of], f"%0 = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0] : {types}", ["%0"], [to])
    a, b = (torch.randint(-9, 9, (3, 3)).to(narrow) for _ in range(2))
    (result,) = build(replace(made, stablehlo=host_form(made.stablehlo)))([a, b])
    assert torch.equal(result, a.to(wide) @ b.to(wide))


def test_the_host_form_of_other_programs_is_the_program(mlp):
    assert host_form(mlp.stablehlo) == mlp.stablehlo
