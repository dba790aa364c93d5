"""Small Programs written as StableHLO text, for the tests of the host target."""

from __future__ import annotations

import torch

from neuron_dynamo.compilers.host import HostCompiler
from neuron_dynamo.lowering.program import STABLEHLO_VERSION, Program, Signature, TensorSpec
from neuron_dynamo.runtime.host import HostExecutable

MLIR_TYPES = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
    torch.float8_e8m0fnu: "f8E8M0FNU",
}


def artifact(text: str) -> bytes:
    """Portable artifact bytes of a module's text."""
    from torch_mlir._mlir_libs import _stablehlo

    data: bytes = _stablehlo.serialize_portable_artifact_str(text, STABLEHLO_VERSION)
    return data


def spec(*shape: int, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec(shape, dtype)


def mlir_type(spec: TensorSpec) -> str:
    return f"tensor<{''.join(f'{dim}x' for dim in spec.shape)}{MLIR_TYPES[spec.dtype]}>"


def program(
    inputs: list[TensorSpec], body: str, results: list[str], outputs: list[TensorSpec], attributes: dict[int, str] | None = None
) -> Program:
    """@main with arguments %a0, %a1 ..., the ops of `body`, and `results` (SSA names) of types `outputs`."""
    attributes = attributes or {}
    arguments = ", ".join(f"%a{i}: {mlir_type(s)} {attributes.get(i, '')}" for i, s in enumerate(inputs))
    types = ", ".join(map(mlir_type, outputs))
    text = f"func.func @main({arguments}) -> ({types}) {{\n{body}\nreturn {', '.join(results)} : {types}\n}}"
    if not results:
        text = f"func.func @main({arguments}) {{\n{body}\nreturn\n}}"
    return Program(artifact(text), Signature(tuple(inputs), tuple(outputs)))


def build(program: Program) -> HostExecutable:
    compiler = HostCompiler()
    return compiler.load(compiler.compile(program), program.signature)


def add(of: TensorSpec) -> Program:
    """(a, b) -> a + b."""
    return program([of, of], f"%0 = stablehlo.add %a0, %a1 : {mlir_type(of)}", ["%0"], [of])
