"""A compiled program on this machine's Neuron device, if it has one, by the runtime that the options name."""

from __future__ import annotations

import torch

from neuron_dynamo.lowering.program import Signature
from neuron_dynamo.options import Options
from neuron_dynamo.runtime import nrt, nrtpy
from neuron_dynamo.runtime.base import Executable

_COLLECTIVES = (b"all_gather", b"all_reduce", b"all_to_all", b"collective_broadcast", b"collective_permute", b"reduce_scatter")


def present(options: Options) -> bool:
    """Whether libnrt is here and shows this process a NeuronCore. Starts nothing, and takes no core."""
    return nrt.device_count(options.libnrt) > 0


def load(neff: bytes, stablehlo: bytes, signature: Signature, options: Options) -> Executable:
    """`neff`, made from `stablehlo`, on the first core that this process sees.

    A program with collective operations is loaded with this process's rank and world size in torch.distributed. Raises what
    NrtExecutable and NrtpyExecutable raise.
    """
    collectives = _rank() if any(name in stablehlo for name in _COLLECTIVES) else None
    if options.runtime == "nrtpy":
        return nrtpy.NrtpyExecutable(neff, signature, collectives=collectives)
    from neuron_dynamo.runtime.nrt_executable import load as load_neff

    return load_neff(neff, signature, library=options.libnrt, collectives=collectives, resident=options.resident)


def _rank() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
