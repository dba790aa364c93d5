"""The state of a warm-up that collects: graphs are lowered, written down for compilers to come, and run by eager PyTorch meanwhile.

What is written lies in a folder, the spool, so that any number of processes of one job can fill it:
<spool>/graphs/<unique>.json     one compiled graph each: name, options, and its programs by key
<spool>/programs/<digest>        StableHLO, named by the Program's digest
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.lowering.program import Program, Signature
from neuron_dynamo.options import Options, collect_folder
from neuron_dynamo.report import GraphReport
from neuron_dynamo.stored import StoredGraph


@dataclass(frozen=True)
class Wanted:
    """One program of a collected graph: the key of the artifact that a job will ask for, and where its StableHLO lies."""

    key: CacheKey
    signature: Signature
    path: Path

    def program(self) -> Program:
        """Raises OSError if the file is gone."""
        return Program(self.path.read_bytes(), self.signature)


@dataclass(frozen=True)
class CollectedGraph:
    """A graph that a collecting process met. `label` is what the warm-up calls that process's job, such as the script and its rank."""

    name: str
    kind: str
    label: str
    options: Options
    programs: tuple[Wanted, ...]
    native: int
    host: int
    timings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Spool:
    """The folder that a collecting process writes to. With `fake`, graphs are called with fake tensors, and so never restored."""

    folder: Path
    label: str = ""
    fake: bool = False

    def add(self, outcome: GraphReport, keys: list[CacheKey], programs: list[Program], options: Options) -> None:
        """Write one graph down. Raises OSError: a warm-up that cannot write has nothing to compile."""
        for program in programs:
            self._write(self.folder / "programs" / program.digest, program.stablehlo)
        record = {
            "name": outcome.name,
            "kind": outcome.kind,
            "label": self.label,
            "options": describe(_from_anywhere(options)),
            "programs": [[key.to_json(), p.signature.to_json(), p.digest] for key, p in zip(keys, programs, strict=True)],
            "native": outcome.native,
            "host": outcome.host,
            "timings": outcome.timings,
        }
        number = len(list((self.folder / "graphs").glob("*"))) if (self.folder / "graphs").is_dir() else 0
        self._write(self.folder / "graphs" / f"{number:06d}-{uuid.uuid4().hex}.json", json.dumps(record).encode())

    def _write(self, path: Path, data: bytes) -> None:
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.parent.parent / f"draft-{os.getpid()}-{uuid.uuid4().hex}"
        draft.write_bytes(data)
        os.replace(draft, path)


def read_spool(folder: Path) -> list[CollectedGraph]:
    """The graphs in a spool, in the order in which they were met."""
    found = []
    for path in sorted((folder / "graphs").glob("*.json")):
        data = json.loads(path.read_bytes())
        programs = tuple(
            Wanted(CacheKey.from_json(key), Signature.from_json(signature), folder / "programs" / digest)
            for key, signature, digest in data["programs"]
        )
        facts = {name: data[name] for name in ("name", "kind", "label", "native", "host", "timings")}
        found.append(CollectedGraph(options=restored_options(data["options"]), programs=programs, **facts))
    return found


def _from_anywhere(options: Options) -> Options:
    """The same directories for a process with another working directory: the script may have changed its own before it compiled."""

    def absolute(path: str) -> str:
        return path if path.startswith("~") else os.path.abspath(path)

    return dataclasses.replace(options, cache_dir=absolute(options.cache_dir), cache_layers=tuple(map(absolute, options.cache_layers)))


def describe(options: Options) -> dict[str, Any]:
    """Options as JSON values."""
    return dataclasses.asdict(options)


def restored_options(data: dict[str, Any]) -> Options:
    """Inverse of `describe`; asks no environment."""
    return Options.resolve({name: value for name, value in data.items() if value is not None}, environ={})


_spool: contextvars.ContextVar[Spool | None] = contextvars.ContextVar("neuron_dynamo_spool", default=None)


@contextlib.contextmanager
def record_to(spool: Spool) -> Iterator[None]:
    """Within it, graphs are collected into `spool`."""
    token = _spool.set(spool)
    try:
        yield
    finally:
        _spool.reset(token)


def recording() -> Spool | None:
    """The spool of this process, or None where it compiles. A process that a collecting script starts inherits the script's."""
    spool = _spool.get()
    if spool is not None:
        return spool
    asked = collect_folder()
    return Spool(*asked) if asked else None


class Standin(StoredGraph):
    """What stands for a compiled graph while its programs are yet to be compiled: `run` gives its results.

    It describes itself as the compiled graph would, so that AOTAutogradCache keeps an entry that is right once the artifacts are there.
    """

    def __init__(self, compiled: StoredGraph, run: Callable[[list[Any]], list[Any]]) -> None:
        super().__init__(compiled, compiled.keys, compiled.outcome)
        self._run = run

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self._run(inputs)


class NotCompiled:
    """The executable of a native step that was collected: it has a signature, and is never called."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        raise AssertionError("a collected graph runs by eager PyTorch")


def eagerly(gm: GraphModule) -> Callable[[list[Any]], list[Any]]:
    """`gm` as it is now, run by eager PyTorch. It clears the list of its inputs."""
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copy = GraphModule(gm, graph)
    return lambda inputs: list(torch.fx.Interpreter(copy).boxed_run(inputs))


def name_real_types(gm: GraphModule, inputs: Sequence[Any]) -> None:
    """Write into Dynamo's graph the types that its inputs have in a real job: its code is part of AOTAutogradCache's key."""
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if node.type is torch._subclasses.FakeTensor:
            node.type = torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
    gm.recompile()
