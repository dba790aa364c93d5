"""Play one rank of a distributed job alone: a fake process group, whose collectives move nothing.

`python -m neuron_dynamo.warmup.ranks WORLD_SIZE RANK [-m] SCRIPT ARGS...` runs a script as that rank.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch.distributed as dist


@contextlib.contextmanager
def environment_of(rank: int, world_size: int) -> Iterator[None]:
    """The variables that torchrun would set on one host."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "GROUP_RANK": 0}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with patch.dict(os.environ, {**{name: str(value) for name, value in numbers.items()}, **address}):
        yield


@contextlib.contextmanager
def fake_group(rank: int, world_size: int) -> Iterator[None]:
    """Within it, this process is `rank` of an initialised default group."""
    with environment_of(rank, world_size):
        _initialise(dist.init_process_group, rank, world_size)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _initialise(function: Any, rank: int, world_size: int) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    function("fake", rank=rank, world_size=world_size, store=FakeStore())


def main() -> None:
    """Run the script named on the command line; its own init_process_group, whatever it asks for, makes the fake group."""
    world_size, rank = int(sys.argv[1]), int(sys.argv[2])
    module = sys.argv[3] == "-m"
    sys.argv = sys.argv[4 if module else 3 :]
    real = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        _initialise(real, rank, world_size)

    with environment_of(rank, world_size), patch.multiple(dist, init_process_group=init_process_group):
        dist.distributed_c10d.init_process_group = init_process_group
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
