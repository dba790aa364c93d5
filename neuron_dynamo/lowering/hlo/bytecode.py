"""Program -> StableHLO as MLIR bytecode, the other form that recent neuronx-cc releases take."""

from __future__ import annotations

import io
import re
from typing import Any

from neuron_dynamo.errors import LoweringError
from neuron_dynamo.lowering.hlo.inlined import inlined_module
from neuron_dynamo.lowering.program import Program, Signature

ALIAS_ATTRIBUTE = "mhlo.input_output_alias"


def bytecode(program: Program, *, custom_calls: bool = False) -> bytes:
    """The program's module as MLIR bytecode (not a portable artifact), in the form that the vendor's own plugin hands to its compiler.

    One function @main, all literals dense, no locations, and the mutated inputs in the module attribute `mhlo.input_output_alias`.
    Raises LoweringError where the program is not of that form.
    """
    from torch_mlir import ir

    module = inlined_module(program.stablehlo, numbered=False, custom_calls=custom_calls)
    text = str(module)
    for form, why in (("dense_resource<", "a literal kept outside of the module"), ("xf64>", "float64"), ("<f64>", "float64")):
        if form in text:
            raise LoweringError(f"the StableHLO for neuronx-cc holds {why}, which it does not take")
    if not program.signature.outputs:
        raise LoweringError("a program without results cannot be compiled by neuronx-cc")
    with module.context, ir.Location.unknown():
        module.context.allow_unregistered_dialects = True
        aliases = _aliases(program.signature)
        if aliases:
            module.operation.attributes[ALIAS_ATTRIBUTE] = ir.Attribute.parse(f"[{', '.join(aliases)}]")
        stripped = ir.Module.parse(module.operation.get_asm(enable_debug_info=False))
        _strip(stripped, ir)
        stream = io.BytesIO()
        stripped.operation.write_bytecode(stream)
    return stream.getvalue()


def _aliases(signature: Signature) -> list[str]:
    rows = []
    for output, parameter in signature.bound_aliases():
        index = str(output) if len(signature.outputs) > 1 else ""
        place = f"array<i64: {index}>" if index else "array<i64>"
        kind = f'alias = {{kind = "must_alias", parameter_index = array<i64>, parameter_number = {parameter} : si64}}'
        rows.append(f"{{{kind}, output_index = {place}}}")
    return rows


def _strip(module: Any, ir: Any) -> None:
    from torch_mlir.passmanager import PassManager

    PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
    assert not re.search(r'loc\("', module.operation.get_asm(enable_debug_info=True))
