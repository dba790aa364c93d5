"""The part of XLA's protos (xla/service/hlo.proto, xla/xla_data.proto) that we read or write, built without protoc.

Fields that are not named here stay in a parsed message as unknown fields and are written back unchanged. Enums are declared as int32,
which has the same encoding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGES = {
    "Layout": "repeated int64 minor_to_major=1; int64 tail_padding_alignment_in_elements=16",
    "Shape": "int32 element_type=2; repeated int64 dimensions=3; repeated Shape tuple_shapes=4; Layout layout=5; "
    "repeated bool is_dynamic_dimension=6",
    "ProgramShape": "repeated Shape parameters=1; Shape result=2; repeated string parameter_names=3",
    "Metadata": "string op_type=1; string op_name=2; string source_file=3; int32 source_line=4",
    "Entry": "string key=1; string value=2",
    "FrontendAttributes": "repeated Entry map=1",
    "ReplicaGroup": "repeated int64 replica_ids=1",
    "IotaReplicaGroups": "int64 num_replica_groups=1; int64 num_devices_per_group=2; repeated int64 iota_reshape_dims=3; "
    "repeated int32 iota_transpose_perm=4",
    "DeviceList": "repeated ReplicaGroup replica_groups=1; IotaReplicaGroups iota_replica_group_list=2",
    "WindowDimension": "int64 size=1; int64 stride=2; int64 padding_low=3; int64 padding_high=4; int64 window_dilation=5; "
    "int64 base_dilation=6; bool window_reversal=7",
    "Window": "repeated WindowDimension dimensions=1",
    "Literal": "Shape shape=1; repeated int64 s64s=5; repeated uint64 u64s=7",
    "Instruction": "string name=1; string opcode=2; Shape shape=3; Metadata metadata=7; Literal literal=8; int64 parameter_number=9; "
    "int64 tuple_index=13; Window window=15; int64 channel_id=26; string custom_call_target=28; int64 id=35; "
    "repeated int64 operand_ids=36; repeated int64 control_predecessor_ids=37; repeated int64 called_computation_ids=38; "
    "bytes backend_config=43; repeated ReplicaGroup replica_groups=49; FrontendAttributes frontend_attributes=68; "
    "int32 rng_algorithm=70; bool use_global_device_ids=71; int32 custom_call_api_version=77; DeviceList collective_device_list=87",
    "Computation": "string name=1; repeated Instruction instructions=2; ProgramShape program_shape=4; int64 id=5; int64 root_id=6",
    "AliasEntry": "repeated int64 output_shape_index=1; int64 parameter_number=2; repeated int64 parameter_shape_index=3; int32 kind=4",
    "Alias": "repeated AliasEntry entries=1",
    "StackFrames": "repeated string file_names=1",
    "Module": "string name=1; string entry_computation_name=2; repeated Computation computations=3; ProgramShape host_program_shape=4; "
    "int64 id=5; int64 entry_computation_id=6; Alias input_output_alias=8; StackFrames stack_frame_index=17",
}
_PACKAGE = "neuron_dynamo.hlo"
_KINDS = {
    name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("int32", "int64", "uint64", "bool", "string", "bytes")
}

MUST_ALIAS = 2
"""HloModuleProto's kind of an alias that the compiler has to honour."""
API_VERSION = 2
"""custom_call_api_version of the vendor's own example; 0, which XLA leaves where none was given, is refused."""
RNG_DEFAULT = 0
PRED, S8, S16, S32, S64, U8, U16, U32, U64, F16, F32, F64, TUPLE, C64, BF16, TOKEN, C128 = (*range(1, 14), 15, 16, 17, 18)
F8E5M2, F8E4M3FN, F8E4M3B11FNUZ, F8E5M2FNUZ, F8E4M3FNUZ, F8E4M3, F8E3M4, F4E2M1FN, F8E8M0FNU = 19, 20, 23, 24, 25, 28, 29, 32, 33


def module() -> Any:
    """An empty HloModuleProto."""
    return _classes()["Module"]()


def parse(data: bytes) -> Any:
    """The HloModuleProto in `data`. Raises ValueError where there is none."""
    from google.protobuf.message import DecodeError

    parsed = module()
    try:
        parsed.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"not an HLO module: {error}") from error
    return parsed


def serialize(message: Any) -> bytes:
    """Bytes of a message; equal messages give equal bytes."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def attributes(message: Any) -> dict[str, str]:
    """The frontend attributes of an instruction."""
    return {entry.key: entry.value for entry in message.frontend_attributes.map}


def set_attribute(message: Any, key: str, value: str) -> None:
    """Set one frontend attribute of an instruction; the others stay, all sorted by key."""
    merged = {**attributes(message), key: value}
    del message.frontend_attributes.map[:]
    for name in sorted(merged):
        message.frontend_attributes.map.add(key=name, value=merged[name])


@cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="neuron_dynamo/hlo.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split("; "):
            *words, last = text.split(" ")
            field_name, number = last.split("=")
            field = message.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_REPEATED if words[0] == "repeated" else field.LABEL_OPTIONAL
            if words[-1] in _KINDS:
                field.type = _KINDS[words[-1]]
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{words[-1]}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}
