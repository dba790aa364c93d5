"""Collectives in the form that the vendor's compiler is known to take: explicit lists of ranks, no channel."""

from __future__ import annotations

from typing import Any

import numpy as np

COLLECTIVES = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"})


def explicit_groups(instruction: Any) -> None:
    """Write the ranks of each group out, and drop the channel and the mode of numbering, which neuronx-cc's own callers never set."""
    if instruction.opcode not in COLLECTIVES:
        return
    if instruction.HasField("collective_device_list"):
        groups = _groups(instruction.collective_device_list)
        del instruction.replica_groups[:]
        for ranks in groups:
            instruction.replica_groups.add(replica_ids=ranks)
        instruction.ClearField("collective_device_list")
    instruction.ClearField("channel_id")
    instruction.ClearField("use_global_device_ids")


def _groups(devices: Any) -> list[list[int]]:
    if not devices.HasField("iota_replica_group_list"):
        return [list(group.replica_ids) for group in devices.replica_groups]
    iota = devices.iota_replica_group_list
    ranks = np.arange(np.prod(list(iota.iota_reshape_dims), dtype=np.int64)).reshape(list(iota.iota_reshape_dims))
    ranks = ranks.transpose(list(iota.iota_transpose_perm)) if iota.iota_transpose_perm else ranks
    return [list(map(int, row)) for row in ranks.reshape(iota.num_replica_groups, iota.num_devices_per_group)]
