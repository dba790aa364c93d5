"""Models from factories: no memory for weights, every mode, every rank; and the real job then misses nothing."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters

import neuron_dynamo
from neuron_dynamo.errors import WarmupError
from neuron_dynamo.recording import CollectedGraph, Spool, read_spool, record_to
from neuron_dynamo.warmup.jobs import Model, Ranks, parse_shape
from neuron_dynamo.warmup.model import collect_model, unpack
from neuron_dynamo.warmup.planning import make_plan
from neuron_dynamo.warmup.ranks import fake_group
from tests.warmup.test_collect import compile_all, in_production


@pytest.fixture
def warmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[CollectedGraph]]:
    """Collect what a factory makes, and compile it."""

    def warm(factory: Callable[[], Any], compiled: bool = True, **given: Any) -> list[CollectedGraph]:
        module = ModuleType("warmed_factory")
        module.make = factory  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "warmed_factory", module)
        collect_model(Model("warmed_factory:make", **given), Spool(tmp_path / "spool", "make"))
        if compiled:
            compile_all(tmp_path / "spool")
        return read_spool(tmp_path / "spool")

    return warm


class Block(nn.Module):
    """A transformer's layer over token ids, with a causal mask buffer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 32)
        self.register_buffer("mask", torch.triu(torch.full((64, 64), float("-inf")), 1), persistent=False)

    def forward(self, input_ids: torch.LongTensor) -> torch.Tensor:
        x = self.embedding(input_ids)
        length = x.shape[1]
        y, _ = self.attention(x, x, x, attn_mask=self.mask[:length, :length], need_weights=False)
        return self.out(self.norm(x + y))


def test_every_mode_is_what_the_real_job_asks_for(warmed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = (parse_shape("input_ids=BxS"),)
    graphs = warmed(
        Block,
        shapes=shapes,
        dims=(("S", (8,)),),
        batch=(1, 2),
        modes=("inference", "training", "optimizer"),
        optimizer="torch.optim:SGD",
        optimizer_args={"lr": 0.1},
    )
    assert [graph.kind for graph in graphs] == ["inference"] * 2 + ["forward", "backward"] * 2 + ["inference"]

    def job() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Block()
        compiled = torch.compile(model, backend="neuron")
        with torch.no_grad():
            logits = compiled.eval()(torch.arange(16).reshape(2, 8))
        loss = compiled.train()(torch.arange(8).reshape(1, 8)).square().mean()
        loss.backward()
        torch.compile(torch.optim.SGD(model.parameters(), lr=0.1).step, backend="neuron")()
        return [logits, loss.detach(), *(p.detach() for p in model.parameters())]

    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **given: function)
        expected = job()
    torch.testing.assert_close(in_production(job, monkeypatch), expected)
    assert len(neuron_dynamo.reports()) == 4
    assert all("compile" not in graph.timings for graph in neuron_dynamo.reports())
    assert counters["aot_autograd"]["autograd_cache_hit"] >= 2  # as if the warm-up had had real tensors


def test_no_weight_is_ever_allocated(warmed: Any) -> None:
    """Three matrices of 64 GB each: more than any machine of this suite has. Their programs compile all the same."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    width = 2**17

    def factory() -> nn.Module:
        return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3)))

    graphs = warmed(factory, shapes=(parse_shape(f"0=1x{width}"),))
    assert [graph.programs[0].signature.inputs[0].shape for graph in graphs] == [(width, width)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * 2**20  # KB


def test_buckets_of_one_symbolic_graph_are_one_trace(warmed: Any) -> None:
    counters.clear()
    buckets = {"shapes": (parse_shape("input_ids=BxS"),), "dims": (("S", (4, 6, 9)),), "batch": (2, 3)}
    graphs = warmed(Block, compiled=False, dynamic=True, **buckets)
    assert len({graph.programs[0].key.digest for graph in graphs}) == 6
    assert counters["stats"]["unique_graphs"] == 1


def test_ranks_share_their_artifacts(warmed: Any) -> None:
    class Sharded(nn.Module):
        """Column- then row-parallel, as each rank of a tensor-parallel job holds it."""

        def __init__(self) -> None:
            super().__init__()
            self.column, self.row = nn.Linear(8, 16 // dist.get_world_size()), nn.Linear(16 // dist.get_world_size(), 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            partial = self.row(torch.relu(self.column(x)))
            return torch.distributed._functional_collectives.all_reduce(partial, "sum", dist.group.WORLD) * 2

    graphs = warmed(lambda: (Sharded(), torch.ones(2, 8)), compiled=False, ranks=Ranks(4, (0, 1, 3)))
    assert [graph.label for graph in graphs] == ["make rank 0", "make rank 1", "make rank 3"]
    plan = make_plan(graphs)
    assert len(plan.items) == len(graphs[0].programs) and all(len(item.graphs) == 3 for item in plan.items)
    assert not dist.is_initialized()


class Doubled(nn.Module):
    """A module of the user's: one of PyTorch's own, right inside of DDP, is not traced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


def test_data_parallel_by_ddp(warmed: Any) -> None:
    def factory() -> Any:
        with torch._subclasses.fake_tensor.unset_fake_temporarily():  # DDP's reducer wants memory
            return nn.parallel.DistributedDataParallel(Doubled()), torch.ones(2, 4)

    graphs = warmed(factory, compiled=False, modes=("training",), ranks=Ranks(2, (0, 1)))
    assert [graph.kind for graph in graphs] == ["forward", "backward"] * 2
    assert [len(item.graphs) for item in make_plan(graphs).items] == [2, 2]


def test_data_parallel_that_runs(tmp_path: Path) -> None:
    """A script's rank, with memory and a backward: its gradients stay its own."""
    own = Doubled()
    with fake_group(1, 2), record_to(Spool(tmp_path)):
        assert (dist.get_rank(), dist.get_world_size(), os.environ["RANK"]) == (1, 2, "1")
        model = nn.parallel.DistributedDataParallel(own)
        torch.compile(model, backend="neuron")(torch.ones(2, 4)).sum().backward()
    torch.testing.assert_close(own.inner.weight.grad, torch.full((4, 4), 4.0))
    assert [graph.kind for graph in read_spool(tmp_path)] == ["forward", "backward"]


def test_what_a_factory_may_return() -> None:
    model, x = nn.Linear(2, 2), torch.ones(2)
    optimizer = torch.optim.SGD(model.parameters())
    for made, args, kwargs in (
        (model, (), {}),
        ((model, x), (x,), {}),
        ((model, (x, x)), (x, x), {}),
        ((model, {"input": x}), (), {"input": x}),
        ((model, [x], {"bias": x}), (x,), {"bias": x}),
    ):
        assert unpack(made, "m:f").args == args and unpack(made, "m:f").kwargs == kwargs
        with_optimizer = unpack((*(made if isinstance(made, tuple) else (made,)), optimizer), "m:f")
        assert with_optimizer.optimizer is optimizer and with_optimizer.args == args
    for wrong in (3, (model, 3), (x, model), (model, x, x), ()):
        with pytest.raises(WarmupError, match="m:f returned"):
            unpack(wrong, "m:f")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shapes": (parse_shape("y=1x4"),)}, "no input 'y'"),
        ({"shapes": (parse_shape("input=1x4:float99"),)}, "'float99' is no dtype"),
        ({"shapes": (parse_shape("2=1x4"),)}, "input 2 is given, but not input 0"),
        ({}, "gives no inputs"),
        ({"modes": ("optimizer",)}, "returns no optimizer"),
    ],
)
def test_bad_jobs_are_told(warmed: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(WarmupError, match=message):
        warmed(lambda: nn.Linear(4, 4), **given)


def test_a_model_that_reads_its_data_is_told(warmed: Any) -> None:
    with pytest.raises(WarmupError, match="reads the value of a tensor"):
        warmed(lambda: (lambda x: x * 2 if x.sum() > 0 else x, torch.ones(3)))
