"""Pipeline: FX graph -> Program. Import, Torch-MLIR's passes where it lowered an op, clean-up, canonical form, bytes."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.fx import Graph
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo
from torch_mlir.passmanager import PassManager

from neuron_dynamo.errors import LoweringError
from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.importer import Importer, new_context
from neuron_dynamo.lowering.program import ENTRY, STABLEHLO_VERSION, OpSource, Program, Signature, TensorSpec
from neuron_dynamo.lowering.regions import COMPOSITE
from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.target import Target

_TORCH_MLIR = (
    "torchdynamo-export-to-torch-backend-pipeline{ extra-library=}",
    "torch-backend-to-stablehlo-backend-pipeline{enable-static-shape=true}",
)
_CHLO = ("func.func(chlo-legalize-to-stablehlo)",)
_CLEAN_UP = ("func.func(stablehlo-aggressive-simplification,canonicalize,cse)",)
_FINAL = ("func.func(cse)", "symbol-dce")


def lower(graph: Graph, target: Target, aliases: tuple[tuple[int, int], ...] = ()) -> Program:
    """Lower a graph of static shapes whose output is a tuple of tensor nodes. Raises LoweringError."""
    importer = Importer(target)
    module = importer.run(graph)
    with importer.context, ir.Location.unknown():
        if importer.uses_torch:
            _run(module, _TORCH_MLIR)
        if importer.uses_chlo:
            _run(module, _CHLO)
        _run(module, _CLEAN_UP)
        _unsplat(module)
        _run(module, _FINAL)
        _merge_functions(module)
        _verify(module)
        sources = _sources(module, graph)
        _run(module, ("strip-debuginfo",))
        artifact: bytes = _stablehlo.serialize_portable_artifact_str(_text(module), STABLEHLO_VERSION)
    nodes = [n for n in graph.nodes if n.op == "placeholder"]
    (output,) = (n for n in graph.nodes if n.op == "output")
    signature = Signature(tuple(map(_spec, nodes)), tuple(map(_spec, output.args[0])), aliases)
    return Program(artifact, signature, sources)


def stablehlo_text(program: bytes) -> str:
    """Readable StableHLO of a portable artifact."""
    return _text(stablehlo_module(program))


def stablehlo_module(program: bytes) -> Any:
    """The MLIR module of a portable artifact, in a context of its own."""
    context = new_context()
    with context, ir.Location.unknown():
        return _stablehlo.deserialize_portable_artifact(context, program)


def _spec(node: torch.fx.Node) -> TensorSpec:
    value = node.meta["val"]
    return TensorSpec(tuple(int(n) for n in value.shape), value.dtype)


def _text(module: Any) -> str:
    # Small literals in full, as readable text; hex strings only where an array is large.
    return str(module.operation.get_asm(large_elements_limit=None, enable_debug_info=False))


def _run(module: Any, passes: tuple[str, ...]) -> None:
    for one in passes:
        try:
            PassManager.parse(f"builtin.module({one})").run(module.operation)
        except ir.MLIRError as error:
            raise LoweringError(f"MLIR pass {one.split('{')[0]} failed: {error}") from error


def _merge_functions(module: Any) -> None:
    """Private functions that are alike become one: the layers of a model share the decompositions of their composites."""
    first: dict[str, Any] = {}
    instead: dict[str, Any] = {}
    for function in [op for op in module.body.operations if op.name.value != ENTRY]:
        name = function.name.value
        body = function.operation.get_asm(large_elements_limit=None, enable_debug_info=False).replace(f"@{name}(", "@(", 1)
        if body in first:
            instead[name] = first[body]
        else:
            first[body] = ir.FlatSymbolRefAttr.get(name)
    if not instead:
        return
    for operation in _operations(module):
        for attribute in ("decomposition", "callee"):
            if attribute in operation.attributes and (name := ir.FlatSymbolRefAttr(operation.attributes[attribute]).value) in instead:
                operation.attributes[attribute] = instead[name]
    _run(module, ("symbol-dce",))


def _operations(module: Any) -> list[Any]:
    found: list[Any] = []

    def visit(operation: Any) -> Any:
        found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _unsplat(module: Any) -> None:
    """Full-shape splat constants, which folding makes, become a scalar and a broadcast; arith.constant becomes StableHLO's."""
    for operation in _operations(module):
        if operation.name not in ("stablehlo.constant", "arith.constant"):
            continue
        kind = operation.results[0].type
        if not isinstance(kind, ir.RankedTensorType) or (kind.rank == 0 and operation.name == "stablehlo.constant"):
            continue
        scalar_type = ir.RankedTensorType.get([], kind.element_type)
        scalar_attr = _splat_scalar(operation, scalar_type)
        if scalar_attr is None:
            continue
        with ir.InsertionPoint(operation), operation.location:
            result = mlir.create("stablehlo.constant", [scalar_type], [], {"value": scalar_attr}, 0).result
            if kind.rank:
                result = mlir.create("stablehlo.broadcast_in_dim", [kind], [result], {"broadcast_dimensions": mlir.i64s([])}, 0).result
        operation.results[0].replace_all_uses_with(result)
        operation.erase()


def _splat_scalar(operation: Any, scalar_type: Any) -> Any:
    """The 0-d value of a constant that holds one value throughout, or None."""
    if isinstance(scalar_type.element_type, ir.ComplexType):  # the bindings cannot read complex attributes
        match = re.search(r"dense<(\([^()]*\))>", str(operation))
        return None if match is None else ir.Attribute.parse(f"dense<{match[1]}> : {scalar_type}")
    value = operation.attributes["value"]
    return ir.DenseElementsAttr.get_splat(scalar_type, value.get_splat_value()) if value.is_splat else None


def _verify(module: Any) -> None:
    """Only StableHLO and functions may be left."""
    left = sorted({o.name for o in _operations(module) if not o.name.startswith(("stablehlo.", "func.", "builtin."))})
    if left:
        raise LoweringError(f"ops other than StableHLO were left over: {', '.join(left)}")
    if not module.operation.verify():
        raise LoweringError("the StableHLO module does not verify")


_NUMBER = re.compile(r'"fx(\d+)"')


def _sources(module: Any, graph: Graph) -> tuple[OpSource, ...]:
    nodes = list(graph.nodes)
    rows = []
    for function in module.body.operations:
        if function.name.value != ENTRY:
            continue
        for index, operation in enumerate(function.regions[0].blocks[0].operations):
            match = _NUMBER.search(str(operation.operation.location))
            if match is not None:
                node = nodes[int(match[1])]
                whole = node.meta.get(COMPOSITE)
                target = str(node.target) if whole is None else whole.name
                rows.append(OpSource(index, operation.operation.name, node.name, target, source_of(node)))
    return tuple(rows)
