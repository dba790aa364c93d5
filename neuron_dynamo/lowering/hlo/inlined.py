"""A Program's module as one function: composites by their decomposition, calls inlined, each op named after its place in the Program."""

from __future__ import annotations

import re
from typing import Any

from neuron_dynamo.errors import LoweringError
from neuron_dynamo.lowering.hlo.custom_calls import use_custom_calls
from neuron_dynamo.lowering.program import ENTRY

_PASSES = ("func.func(stablehlo-legalize-composite-to-call)", "inline", "symbol-dce")
_NUMBER = re.compile(r'"nd(\d+)"')


def inlined_module(stablehlo: bytes, *, numbered: bool, custom_calls: bool = False) -> Any:
    """The MLIR module of a portable artifact with nothing but @main, in a context of its own.

    With `numbered`, every op carries as its location the name `nd<i>`, where i is the index of the op of the Program's @main that it is
    or that it was inlined from. With `custom_calls`, composites that neuronx-cc has a custom call for become one. Raises LoweringError
    where a function cannot be inlined.
    """
    from torch_mlir import ir
    from torch_mlir.passmanager import PassManager

    from neuron_dynamo.lowering.pipeline import stablehlo_module

    module = stablehlo_module(stablehlo)
    with module.context, ir.Location.unknown():
        if numbered:
            for index, operation in enumerate(_body(module)):
                operation.operation.location = ir.Location.name(f"nd{index}")
        if custom_calls:
            use_custom_calls(_body(module))
        for one in _PASSES:
            try:
                PassManager.parse(f"builtin.module({one})").run(module.operation)
            except ir.MLIRError as error:
                raise LoweringError(f"MLIR pass {one} failed: {error}") from error
        functions = [function.name.value for function in module.body.operations]
        if functions != [ENTRY]:
            raise LoweringError(f"functions other than the entry were left over: {', '.join(functions)}")
        if numbered:
            for operation in _body(module):
                _name(operation.operation, ir)
    return module


def _body(module: Any) -> list[Any]:
    (entry,) = [function for function in module.body.operations if function.name.value == ENTRY]
    return list(entry.regions[0].blocks[0].operations)


def _name(operation: Any, ir: Any) -> None:
    """The outermost number that the location tells, which is the call's where the op was inlined."""
    numbers = _NUMBER.findall(str(operation.location))
    operation.location = ir.Location.name(f"nd{numbers[-1]}") if numbers else ir.Location.unknown()
