"""Importer: one FX graph of static shape -> an MLIR module.

Ops with a rule of ours are emitted as StableHLO at once; the rest goes through Torch-MLIR's own node importer, between casts
that its pipelines dissolve. So both kinds share one function body, and a graph without Torch-MLIR ops needs none of its passes.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras.fx_importer import ContextCache, FxImporter, GraphNodeImporter
from torch_mlir.passmanager import PassManager

from neuron_dynamo import custom
from neuron_dynamo.errors import LoweringError, NeuronDynamoError, RuleError
from neuron_dynamo.lowering import mlir, registry
from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.describe import describe
from neuron_dynamo.lowering.program import ENTRY, TensorSpec
from neuron_dynamo.lowering.regions import COMPOSITE, REGIONS, Composite, composite
from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.lowering.structured import composite as emit_composite
from neuron_dynamo.target import Target

# The wheel has no Python classes for these dialects. Without a module the bindings search the disk for one at each operation.
for _dialect in ("torch_mlir.dialects.stablehlo", "torch_mlir.dialects.chlo"):
    sys.modules.setdefault(_dialect, ModuleType(_dialect))


def new_context() -> Any:
    """An MLIR context with the torch and StableHLO dialects, single-threaded: modules are small and processes many."""
    context = ir.Context()
    context.enable_multithreading(False)
    torch_dialect.register_dialect(context)
    _stablehlo.register_dialect(context)
    _stablehlo.register_stablehlo_passes()
    with context, ir.Location.unknown():
        # Loads torch_c, the dialect of casts between Torch-MLIR's tensors and builtin ones.
        PassManager.parse("builtin.module(func.func(convert-torch-to-stablehlo))").run(ir.Module.parse("func.func @f() {return}").operation)
    return context


class Importer:
    """Imports one graph. `uses_torch` tells whether Torch-MLIR's pipelines must run."""

    def __init__(self, target: Target) -> None:
        self.context = new_context()
        self.uses_torch = False
        self._fx_importer = FxImporter(context=self.context)
        self.module = self._fx_importer.module
        self._builder = Builder(target, self._new_function)
        self._values: dict[Node, Any] = {}
        self._symbols: dict[str, int] = {}

    @property
    def uses_chlo(self) -> bool:
        """Whether a rule emitted CHLO ops, which must be expanded."""
        return self._builder.uses_chlo

    def run(self, graph: Graph) -> Any:
        """The module with @main. Raises LoweringError (from the op at fault) or whatever of ours a rule raises."""
        with self.context, ir.Location.unknown():
            inputs = [_spec(node.meta["val"]) for node in graph.nodes if node.op == "placeholder"]
            (output,) = (node for node in graph.nodes if node.op == "output")
            outputs = [_spec(node.meta["val"]) for node in output.args[0]]
            block = self._define(ENTRY, inputs, outputs, "public")
            arguments = iter(block.arguments)
            self._torch = GraphNodeImporter(self._fx_importer, self.context, ContextCache(self.context), block)
            with mlir.at_end_of(block):
                for number, node in enumerate(graph.nodes):
                    with ir.Location.name(f"fx{number}"):
                        if node.op == "placeholder":
                            spec = _spec(node.meta["val"])
                            self._values[node] = Value(next(arguments), spec.shape, spec.dtype)
                        elif node.op == "output":
                            mlir.create("func.return", [], [self._values[n].ir for n in node.args[0]], {}, 0)
                        else:
                            self._values[node] = self._import(node)
        return self.module

    def _define(self, name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], visibility: str) -> Any:
        kind = ir.FunctionType.get(
            [mlir.tensor_type(s.shape, s.dtype) for s in inputs], [mlir.tensor_type(s.shape, s.dtype) for s in outputs]
        )
        attributes = {"sym_name": mlir.string(name), "function_type": ir.TypeAttr.get(kind), "sym_visibility": mlir.string(visibility)}
        if visibility == "public":
            del attributes["sym_visibility"]
        with ir.InsertionPoint(self.module.body):
            function = mlir.create("func.func", [], [], attributes, 1)
        return mlir.append_block(function, 0, kind.inputs)

    def _new_function(self, name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[str, Any]:
        count = self._symbols.get(name, 0)
        self._symbols[name] = count + 1
        symbol = f"{name}.{count}".replace(".", "_")
        return symbol, self._define(symbol, inputs, outputs, "private")

    def _import(self, node: Node) -> Any:
        if node.op == "get_attr":
            return self._literal(node)
        if node.target is operator.getitem:
            return self._values[node.args[0]][node.args[1]]  # type: ignore[index]
        if node.target is composite:
            return self._composite(node, node.meta[COMPOSITE])
        try:
            entry = registry.find(node.target)
            result = self._by_torch_mlir(node) if entry is None else self._by_rule(node, entry)
        except NeuronDynamoError:
            raise
        except Exception as error:
            raise _error(node, f"{type(error).__name__}: {error}") from error
        self._check(node, result)
        return result

    def _literal(self, node: Node) -> Any:
        owner: Any = node.graph.owning_module
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        if isinstance(owner, torch.nn.Module):
            return None  # the sub-graph of a higher-order op, which takes it from REGIONS
        with _disable_current_modes():  # AOTAutograd compiles under a fake mode; the literal's values are real
            tensor = owner.detach().contiguous()
            array = tensor.reshape(-1).view(torch.uint8).numpy().view(mlir.numpy_dtype(tensor.dtype)).reshape(tuple(tensor.shape))
        return self._builder.literal(array, tensor.dtype)

    def _by_rule(self, node: Node, entry: registry.Entry) -> Any:
        self._builder.outs = _specs(node)
        self._builder.used = tuple(_is_used(node, index) for index in range(len(self._builder.outs)))
        regions = node.meta.get(REGIONS, {})

        def value(argument: Node) -> Any:
            found = regions.get(argument.target) if argument.op == "get_attr" else None
            return self._values[argument] if found is None else functools.partial(self._subgraph, found)

        args = torch.fx.node.map_arg(node.args, value)
        kwargs = torch.fx.node.map_arg(node.kwargs, value)
        return entry.rule(self._builder, *args, **kwargs)

    def _composite(self, node: Node, whole: Composite) -> tuple[Value, ...]:
        operands = [self._values[operand] for operand in node.all_input_nodes]
        outputs = [(tuple(value.shape), value.dtype) for value in node.meta["val"]]
        text = ", ".join(f"{name} = {mlir.attribute_text(value)}" for name, value in sorted(whole.attributes.items()))
        name = f"neuron_dynamo.{whole.name}"
        return tuple(emit_composite(self._builder, name, operands, lambda given: self._subgraph(whole, *given), outputs, text))

    def _subgraph(self, gm: torch.fx.GraphModule | Composite, *operands: Any) -> list[Any]:
        """Emit a sub-graph over those of the operands that are Values, at the builder's place; returns its results."""
        outs, used = self._builder.outs, self._builder.used
        arguments = (operand for operand in operands if isinstance(operand, Value))
        results: list[Any] = []
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(arguments)
            elif node.op == "output":
                returned = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
                results = list(torch.fx.node.map_arg(returned, self._values.__getitem__))
            else:
                self._values[node] = self._import(node)
        self._builder.outs, self._builder.used = outs, used
        return results

    def _by_torch_mlir(self, node: Node) -> Any:
        self.uses_torch = True
        for operand in node.all_input_nodes:
            if (operand, 0) not in self._torch._v:
                value = self._values[operand]
                kind = self._torch._cc.create_vtensor_type(value.dtype, torch.Size(value.shape))
                cast = mlir.create("torch_c.from_builtin_tensor", [kind], [value.ir], {}, 0)
                self._torch.bind_node_value(operand, cast.result)
        self._torch._import_torch_op_overload(ir.Location.current, node)
        results = []
        for index, spec in enumerate(_specs(node)):
            assert spec is not None
            cast = mlir.create(
                "torch_c.to_builtin_tensor",
                [mlir.tensor_type(spec.shape, spec.dtype)],
                [self._torch.resolve_node_value(node, index)],
                {},
                0,
            )
            results.append(Value(cast.result, spec.shape, spec.dtype))
        return results[0] if isinstance(node.meta["val"], torch.Tensor) else tuple(results)

    def _check(self, node: Node, result: Any) -> None:
        """A rule whose result has another shape or dtype than PyTorch's would make wrong numbers later: stop here."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        specs = _specs(node)
        if len(results) != len(specs):
            raise _error(node, f"lowering rule made {len(results)} results instead of {len(specs)}")
        for index, (value, spec) in enumerate(zip(results, specs, strict=True)):
            if value is None:
                if spec is not None and (len(specs) == 1 or _is_used(node, index)):
                    raise _error(node, f"result {index} is used but was not lowered")
            elif not isinstance(value, Value):
                raise _error(node, f"lowering rule returned a {type(value).__name__} as result {index}")
            elif spec is None or value.shape != spec.shape or value.dtype != spec.dtype:
                raise _error(node, f"lowering rule made {value.dtype} {list(value.shape)} as result {index}, PyTorch says {spec}")


def _error(node: Node, what: str) -> NeuronDynamoError:
    """The error for a failure to lower `node`, which names the rule where it is the user's."""
    place = custom.place_of_rule(node.target)
    if place:
        return RuleError(f"{place}: {what}", op=describe(node), source=source_of(node), remedy="make the rule return what `b.outs` says")
    return LoweringError(what, op=describe(node), source=source_of(node))


def _spec(value: Any) -> TensorSpec:
    return TensorSpec(tuple(int(n) for n in value.shape), value.dtype)


def _specs(node: Node) -> tuple[TensorSpec | None, ...]:
    value = node.meta["val"]
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(_spec(v) if isinstance(v, torch.Tensor) else None for v in values)


def _is_used(node: Node, index: int) -> bool:
    """Whether result `index` of a node with several results has a user."""
    return any(user.target is operator.getitem and user.args[1] == index for user in node.users)
