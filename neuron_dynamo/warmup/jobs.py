"""What a user can have warmed: a script, or a model from a factory; plain records that a command line or a manifest fills."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_dynamo.errors import WarmupError

MODES = ("inference", "training", "optimizer")


@dataclass(frozen=True)
class Ranks:
    """The ranks of a distributed job that are played, one after the other, on this machine; `world_size` 0: the job is not distributed."""

    world_size: int = 0
    ranks: tuple[int, ...] = ()

    def each(self) -> tuple[int | None, ...]:
        return self.ranks if self.world_size else (None,)


@dataclass(frozen=True)
class Script:
    """`python script.py args...`, or with `module` `python -m script args...`."""

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    ranks: Ranks = Ranks()

    @property
    def label(self) -> str:
        return self.script


@dataclass(frozen=True)
class InputShape:
    """Shape of one input, by the parameter's name or its position; a dimension is a number or the name of one. "" is any dtype."""

    name: str
    dims: tuple[int | str, ...]
    dtype: str = ""


@dataclass(frozen=True)
class Model:
    """A factory (`module:function`) and how what it makes is called.

    `shapes` replace the inputs that the factory gives, once for each combination of the values of `dims`; `batch`, where no shape names a
    dimension B, is put into the first dimension of every input. `dynamic` compiles all shapes as one graph of symbolic sizes.
    `optimizer` is `module:Class` with its arguments in `optimizer_args`.
    """

    factory: str
    shapes: tuple[InputShape, ...] = ()
    dims: tuple[tuple[str, tuple[int, ...]], ...] = ()
    batch: tuple[int, ...] = ()
    modes: tuple[str, ...] = ("inference",)
    dynamic: bool = False
    optimizer: str = ""
    optimizer_args: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    ranks: Ranks = Ranks()

    @property
    def label(self) -> str:
        return self.factory

    def variants(self) -> list[tuple[dict[str, tuple[tuple[int, ...], str]], int | None]]:
        """For each call: the shape and dtype of inputs by name, and the size of the first dimension of all ("None": as given)."""
        named = {dim for shape in self.shapes for dim in shape.dims if isinstance(dim, str)}
        values = dict(self.dims)
        if self.batch and "B" in named:
            values["B"] = self.batch
        unknown, unused = sorted(named - values.keys()), sorted(values.keys() - named)
        if unknown or unused:
            what = f"dimension {unknown[0]} has no value" if unknown else f"no shape has a dimension {unused[0]}"
            raise WarmupError(what, remedy="name dimensions in --shape ids=BxS, and give each its values with --dim S=128,256")
        first = self.batch if self.batch and "B" not in named else (None,)
        calls = []
        for numbers in itertools.product(*values.values()):
            chosen = dict(zip(values, numbers, strict=True))
            shapes = {s.name: (tuple(chosen[d] if isinstance(d, str) else d for d in s.dims), s.dtype) for s in self.shapes}
            calls += [(shapes, size) for size in first]
        return calls


Job = Script | Model


def parse_shape(text: str) -> InputShape:
    """`name=1x128`, `name=BxS:int64`, `name=scalar`; `0=...` names the first positional input. Raises WarmupError."""
    found = re.fullmatch(r"([A-Za-z_]\w*|\d+)=([\w]+?)(?::(\w+))?", text)
    parts = found[2].split("x") if found and found[2] != "scalar" else []
    if not found or not all(re.fullmatch(r"\d+|[A-Z][A-Z0-9_]*", part) for part in parts):
        raise WarmupError(f"{text!r} is not a shape", remedy="give NAME=1x128 or NAME=BxS:int64; named dimensions are in capitals")
    return InputShape(found[1], tuple(int(part) if part.isdigit() else part for part in parts), found[3] or "")


def parse_dim(text: str) -> tuple[str, tuple[int, ...]]:
    """`S=128,256`. Raises WarmupError."""
    name, equals, values = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise WarmupError(f"{text!r} is not a dimension", remedy="give NAME=128,256 with the name in capitals")
    return name, parse_numbers(values)


def parse_numbers(text: str) -> tuple[int, ...]:
    """`1,4,8`, `0-7` or both. Raises WarmupError."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not found:
            raise WarmupError(f"{text!r} is not a list of numbers", remedy="give numbers and ranges such as 1,4,8 or 0-7")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return tuple(dict.fromkeys(numbers))


def parse_modes(given: Sequence[str]) -> tuple[str, ...]:
    """Raises WarmupError for one that is none of MODES."""
    for mode in given:
        if mode not in MODES:
            raise WarmupError(f"mode is {mode!r}", remedy=f"valid modes are {', '.join(MODES)}")
    return tuple(dict.fromkeys(given)) or ("inference",)


def parse_ranks(world_size: int, ranks: str | None) -> Ranks:
    """All ranks by default. Raises WarmupError for a rank that the world does not have."""
    if world_size <= 0:
        if ranks is not None:
            raise WarmupError("ranks are given, but no world size", remedy="give --world-size too")
        return Ranks()
    chosen = parse_numbers(ranks) if ranks else tuple(range(world_size))
    if max(chosen) >= world_size:
        raise WarmupError(f"there is no rank {max(chosen)} in a world of {world_size}", remedy=f"ranks go from 0 to {world_size - 1}")
    return Ranks(world_size, chosen)
