"""What each target can do. Lowering asks the target; nothing else branches on its name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

_NEURON_DTYPES = frozenset(
    {
        torch.bool,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float8_e5m2,
    }
)
_HOST_DTYPES = _NEURON_DTYPES | {
    torch.uint64,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
}
RESTRICTED_OPS = frozenset(
    {
        "case",
        "cholesky",
        "convolution.dilated",
        "dot.integers",
        "fft",
        "if",
        "reduce.any_body",
        "reduce.variadic",
        "reduce_window.dilated",
        "scatter.bool",
        "scatter.integers",
        "shift_right_arithmetic.any_width",
        "sort",
        "triangular_solve",
        "while",
    }
)
"""StableHLO ops, and forms of ops, that some targets refuse.

`any_body` is a reduction, also a windowed one, by other than one add, multiply, minimum or maximum; `variadic` one of several
tensors; a `dilated` convolution dilates its input and also strides or dilates its kernel; `scatter.bool` combines booleans;
`scatter.integers` and `dot.integers` sum integers exactly (others take them, but compute in float32);
`any_width` is other than 32 bits.
"""


@dataclass(frozen=True)
class Target:
    """A machine that Programs are compiled for.

    `lnc` is the logical NeuronCore configuration (physical cores per logical core). `dtypes` are those that its compiler
    takes; `custom_calls` the custom-call targets that it understands. `widening_dot` tells whether a dot_general may have a
    wider result than its operands: XLA CPU refuses some of these (bf16 x bf16 = f32) when it runs them. `ops` are those of
    the StableHLO ops in RESTRICTED_OPS that its compiler takes; all other ops are taken by every target. `wide_integers` tells whether its
    compiler can keep 64 bits of an integer; else it computes with the lower 32. `core_memory` are the bytes of device memory to a
    physical core.
    """

    name: str
    lnc: int
    lnc_choices: tuple[int, ...]
    dtypes: frozenset[torch.dtype]
    custom_calls: frozenset[str] = frozenset()
    widening_dot: bool = True
    ops: frozenset[str] = frozenset()
    wide_integers: bool = True
    core_memory: int | None = None

    @property
    def memory(self) -> int | None:
        """Bytes of device memory that one logical core has; None where that is not published, and for the host."""
        return None if self.core_memory is None else self.core_memory * self.lnc

    @property
    def is_host(self) -> bool:
        return self.name == "host"


_TARGETS = {
    # XLA legalises the serialised CHLO erf to its own `erf` opcode.
    "host": Target("host", 1, (1,), _HOST_DTYPES, frozenset({"mhlo.erf"}), widening_dot=False, ops=RESTRICTED_OPS),
    "trn1": Target("trn1", 1, (1,), _NEURON_DTYPES, ops=frozenset({"sort"}), wide_integers=False, core_memory=16 * 2**30),
    "inf2": Target("inf2", 1, (1,), _NEURON_DTYPES, ops=frozenset({"sort"}), wide_integers=False, core_memory=16 * 2**30),
    "trn2": Target("trn2", 2, (1, 2), _NEURON_DTYPES, core_memory=12 * 2**30),
    "trn3": Target("trn3", 2, (1, 2), _NEURON_DTYPES | {torch.float8_e4m3fn}),
}
TARGET_NAMES = tuple(_TARGETS)


def get_target(name: str, lnc: int | None = None) -> Target:
    """The target called `name` (one of TARGET_NAMES) with logical-core configuration `lnc`, by default its own."""
    target = _TARGETS[name]
    if lnc is None or lnc == target.lnc:
        return target
    return dataclasses.replace(target, lnc=lnc)
