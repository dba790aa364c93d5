"""Every error and warning that a user can meet, each with a stable code.

An error says what happened, to which op, at which line of the user's code, and what to do next.
Codes are never reused. `ND0xx` codes are listed in README's table, which a test compares with this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceLine:
    """A place in the user's code: file, 1-based line, and the dotted path of the nn.Module that ran it ('' if none)."""

    file: str
    line: int
    module: str = ""
    code: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where} in module {self.module}" if self.module else where


class NeuronDynamoError(RuntimeError):
    """Base of every error that neuron_dynamo raises; `code` is stable across releases."""

    code = "ND000"

    def __init__(self, what: str, *, op: str = "", source: SourceLine | None = None, remedy: str = "") -> None:
        self.what, self.op, self.source, self.remedy = what, op, source, remedy
        parts = [f"{self.code}: {what}"]
        if op:
            parts.append(f"  op: {op}")
        if source is not None:
            parts.append(f"  at: {source}" + (f"\n      {source.code}" if source.code else ""))
        if remedy:
            parts.append(f"  what to do: {remedy}")
        super().__init__("\n".join(parts))


class OptionError(NeuronDynamoError, ValueError):
    """An unknown option key or a value outside its domain."""

    code = "ND001"


class ModeError(NeuronDynamoError, ValueError):
    """`torch.compile(mode=...)` was given; the backend has no modes."""

    code = "ND002"


class DeviceError(NeuronDynamoError):
    """A tensor on a device other than the CPU reached the backend."""

    code = "ND003"


class UnsupportedOpError(NeuronDynamoError):
    """An op has no native lowering and `fallback="error"` forbids running it on the host."""

    code = "ND010"


class LoweringError(NeuronDynamoError):
    """Lowering an FX graph to StableHLO failed."""

    code = "ND011"


class PrecisionError(NeuronDynamoError):
    """A graph has a type that the target lacks, and `precision="error"` forbids narrowing it."""

    code = "ND012"


class RuleError(NeuronDynamoError):
    """A lowering rule or decomposition that the user registered is wrong, or cannot be registered."""

    code = "ND013"


class CompilerError(NeuronDynamoError):
    """The target's compiler refused or failed on a Program, or could not load an artifact.

    `transient` says that the same compiler may well succeed on the same Program next time: it ran out of memory, time or disk space, or a
    signal or a user ended it. A failure that is not transient is the compiler's own answer (exit code 70, an NCC code, XLA's refusal), and
    the cache remembers it: the error is then `remembered`, and the compiler did not run for it. `vendor_code` is the compiler's own code,
    such as NCC_EVRF029, and `log` what it printed ("" for none).
    """

    code = "ND020"

    def __init__(
        self,
        what: str,
        *,
        op: str = "",
        source: SourceLine | None = None,
        remedy: str = "",
        transient: bool = False,
        vendor_code: str = "",
        log: str = "",
    ) -> None:
        self.transient, self.vendor_code, self.log = transient, vendor_code, log
        self.remembered = False
        super().__init__(what, op=op, source=source, remedy=remedy)


class CompilerMissingError(NeuronDynamoError):
    """The target needs a compiler or runtime that is not installed on this machine."""

    code = "ND021"


class PreflightError(CompilerError):
    """The target's compiler is published to refuse what a Program holds, so it was not started; `findings` are all of them."""

    code = "ND022"

    def __init__(self, what: str, findings: Sequence[Any], *, remedy: str = "") -> None:
        self.findings = tuple(findings)
        super().__init__(what, remedy=remedy, vendor_code=self.findings[0].code if self.findings else "")


class NeffError(CompilerError):
    """A NEFF is damaged, cut short or none at all, or does not fit the Program that it was made from."""

    code = "ND024"


class CacheMissError(NeuronDynamoError):
    """`cache="require"` and the entry is not there."""

    code = "ND030"


class BundleError(NeuronDynamoError):
    """A file is not a bundle of cache entries, or one of another version."""

    code = "ND033"


class ExecutionError(NeuronDynamoError):
    """Running a compiled graph failed, or its inputs do not fit its signature."""

    code = "ND040"


class ForkError(ExecutionError):
    """A compiled graph was used in a child made by fork after the XLA client existed."""

    code = "ND041"


class InspectError(NeuronDynamoError):
    """`inspect`, or an argument of a command such as `module:function`, could not be used."""

    code = "ND050"


class WarmupError(NeuronDynamoError):
    """What is to be warmed could not be made out: an argument, a manifest, a factory's result, or the cluster that was named."""

    code = "ND060"


class NeuronDynamoWarning(UserWarning):
    """Base of every warning; the text begins with its code."""


class FallbackWarning(NeuronDynamoWarning):
    """ND110: ops run on the host, or a whole graph runs in eager PyTorch."""


class PrecisionWarning(NeuronDynamoWarning):
    """ND111: the target lacks a type and the precision policy changed it."""


class CacheWarning(NeuronDynamoWarning):
    """ND130: the cache could not be read or written; work goes on without it."""


class DumpWarning(NeuronDynamoWarning):
    """ND131: `dump_dir` could not be written; compiling goes on."""


class NumericalWarning(NeuronDynamoWarning):
    """ND142: a compiled graph ran to its end and met a NaN on the way (the Neuron runtime's status 1003); its outputs are valid."""


class NoDeviceWarning(NeuronDynamoWarning):
    """ND141: programs of a Neuron target run on the host, for want of a device (or of a compiler, where that was asked for)."""


class CompilerWarning(NeuronDynamoWarning):
    """ND143: a program that the target's compiler computes with fewer digits than it asks for, or by an estimate may refuse."""


class BackendNameWarning(NeuronDynamoWarning):
    """ND101: another package owns the backend name `neuron`."""
