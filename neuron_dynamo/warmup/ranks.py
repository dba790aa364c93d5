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

import torch
import torch.distributed as dist


@contextlib.contextmanager
def environment_of(rank: int, world_size: int) -> Iterator[None]:
    """The variables that torchrun would set on one host."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "GROUP_RANK": 0}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    with patch.dict(os.environ, {**{name: str(value) for name, value in numbers.items()}, **address}):
        yield


@contextlib.contextmanager
def silent_data_parallel() -> Iterator[None]:
    """Within it, DistributedDataParallel exchanges no gradients: its reducer wants results, of which a fake group has none."""
    from torch.nn.parallel import DistributedDataParallel

    make, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        register(self, None, _own_gradients)

    with patch.multiple(DistributedDataParallel, __init__=made, register_comm_hook=lambda self, state, hook: None):
        yield


def _own_gradients(state: None, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


_own_gradients.__annotations__.clear()  # DDP compares them with types; here they are texts


@contextlib.contextmanager
def fake_group(rank: int, world_size: int) -> Iterator[None]:
    """Within it, this process is `rank` of an initialised default group."""
    with environment_of(rank, world_size), silent_data_parallel():
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

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
    with environment_of(rank, world_size), silent_data_parallel():
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
