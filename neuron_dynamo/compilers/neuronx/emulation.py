"""Running a Neuron target's programs on the host: numbers without a device, and no claim about the device's."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch

from neuron_dynamo.compilers.base import Compiled
from neuron_dynamo.compilers.host import HostCompiler
from neuron_dynamo.compilers.neuronx.arguments import WITH_INTEGER_FLAGS, arguments
from neuron_dynamo.errors import NoDeviceWarning
from neuron_dynamo.lowering.program import STABLEHLO_VERSION, Program, Signature
from neuron_dynamo.options import Options
from neuron_dynamo.preflight.refusal import refuse
from neuron_dynamo.runtime.base import Executable

_WIDENING = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")
_warned: set[str] = set()
_lock = threading.Lock()


class EmulatedExecutable:
    """A program of a Neuron target on the host; see runtime.base.Executable for the contract. Thread-safe.

    The host compiles it at its first call, so that a warm-up on a machine without a device compiles for the device alone. That call
    warns with `what`, once a process.
    """

    def __init__(self, stablehlo: bytes, signature: Signature, what: str) -> None:
        self.signature = signature
        self._stablehlo, self._what = stablehlo, what
        self._lock = threading.Lock()
        self._executable: Executable | None = None

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._executable is None:
            with self._lock:
                if self._executable is None:
                    warn_once(self._what)
                    host = HostCompiler()
                    self._executable = host.load(host.compile(Program(host_form(self._stablehlo), self.signature)), self.signature)
        return self._executable(inputs)


class EmulatingCompiler:
    """Stands in for neuronx-cc where it is missing and `emulate="always"` was asked for; fulfils compilers.base.Compiler.

    A program that preflight refuses is an error, as it would be with the compiler; what the compiler itself would say stays unknown.
    """

    name = "emulation"

    def __init__(self, options: Options, why: str) -> None:
        self._target, self._why = options.resolved_target, why
        self._arguments = arguments(options, WITH_INTEGER_FLAGS)
        self._host = HostCompiler()

    def identity(self) -> tuple[tuple[str, str], ...]:
        return (*self._host.identity(), ("emulates", self._target.name))

    def compile(self, program: Program) -> Compiled:
        refuse(program, self._target, arguments=self._arguments)
        return Compiled(self._host.compile(Program(host_form(program.stablehlo), program.signature)))

    def load(self, artifact: bytes, signature: Signature) -> Executable:
        warn_once(f"{self._why}, and emulate='always': programs for {self._target.name} were not compiled for it, and run on the host")
        return self._host.load(artifact, signature)


def warn_once(what: str) -> None:
    """A NoDeviceWarning with this text, once a process."""
    with _lock:
        if what in _warned:
            return
        _warned.add(what)
    warnings.warn(f"ND141: {what}", NoDeviceWarning, stacklevel=3)


def host_form(stablehlo: bytes) -> bytes:
    """The program with the same numbers as a portable artifact that XLA CPU runs.

    It refuses products of narrow types with a wide result; widening their operands first changes no number.
    """
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _stablehlo

    from neuron_dynamo.lowering import mlir
    from neuron_dynamo.lowering.pipeline import stablehlo_module

    module = stablehlo_module(stablehlo)
    changed = False

    def visit(operation: Any) -> Any:
        nonlocal changed
        if operation.name in _WIDENING:
            wide = operation.results[0].type.element_type
            for index, operand in enumerate(operation.operands):
                if operand.type.element_type != wide:
                    kind = ir.RankedTensorType.get(operand.type.shape, wide)
                    with ir.InsertionPoint(operation):
                        operation.operands[index] = mlir.create("stablehlo.convert", [kind], [operand], {}, 0).results[0]
                    changed = True
        return ir.WalkResult.ADVANCE

    with module.context, ir.Location.unknown():
        module.operation.walk(visit)
        if not changed:
            return stablehlo
        text = module.operation.get_asm(large_elements_limit=None, enable_debug_info=False)
        data: bytes = _stablehlo.serialize_portable_artifact_str(text, STABLEHLO_VERSION)
    return data
