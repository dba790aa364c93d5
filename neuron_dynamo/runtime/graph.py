"""CompiledGraph: a whole FX graph ready to run, as native programs with host steps (views, mutations, fallbacks) between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dynamo.runtime.base import Executable


@dataclass(frozen=True)
class Slot:
    """A place in the environment of one call. Slots 0..n-1 hold the graph's n inputs."""

    index: int


@dataclass(frozen=True)
class NativeStep:
    """Run an executable: slots in, slots out."""

    executable: Executable
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class HostStep:
    """Call a function eagerly; Slots within args and kwargs stand for values."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: int


@dataclass(frozen=True)
class Constant:
    """Target of a host step that only gives a value: a tensor which is part of the graph."""

    value: Any

    def __call__(self) -> Any:
        return self.value


Step = NativeStep | HostStep


class CompiledGraph:
    """Callable with AOTAutograd's boxed convention: takes a list of inputs and clears it, returns a list of outputs.

    `outputs` are Slots or constants. Values are dropped after their last use, so that memory peaks no higher than in eager.
    """

    def __init__(self, inputs: int, slots: int, steps: Sequence[Step], outputs: Sequence[Any]) -> None:
        self._boxed_call = True  # on the instance: Dynamo wraps the backward and copies only __dict__
        self.inputs, self.slots, self.steps, self.outputs = inputs, slots, tuple(steps), tuple(outputs)
        self._plan = _plan(inputs, self.steps, self.outputs)
        self._executable: Executable | None = None
        if len(self.steps) == 1 and isinstance(step := self.steps[0], NativeStep):
            whole = step.inputs == tuple(range(inputs))
            if whole and self.outputs == tuple(Slot(i) for i in step.outputs):
                self._executable = step.executable

    def __call__(self, inputs: list[Any]) -> list[Any]:
        env = inputs[:]
        inputs.clear()
        if self._executable is not None:
            return self._executable(env)
        env.extend([None] * (self.slots - self.inputs))
        for step, dead in self._plan:
            if isinstance(step, NativeStep):
                results = step.executable([env[i] for i in step.inputs])
                for slot, value in zip(step.outputs, results, strict=True):
                    env[slot] = value
            else:
                env[step.output] = step.target(*_fill(step.args, env), **_fill(step.kwargs, env))
            for slot in dead:
                env[slot] = None
        return [env[o.index] if type(o) is Slot else o for o in self.outputs]


def _fill(value: Any, env: list[Any]) -> Any:
    kind = type(value)
    if kind is Slot:
        return env[value.index]
    if kind is tuple or kind is list:
        return kind([_fill(v, env) for v in value])
    if kind is dict:
        return {k: _fill(v, env) for k, v in value.items()}
    if kind is slice:
        return slice(_fill(value.start, env), _fill(value.stop, env), _fill(value.step, env))
    return value


def slots_in(value: Any) -> list[int]:
    """All slot indices within nested args."""
    if isinstance(value, Slot):
        return [value.index]
    if isinstance(value, (tuple, list)):
        return [i for v in value for i in slots_in(v)]
    if isinstance(value, dict):
        return [i for v in value.values() for i in slots_in(v)]
    if isinstance(value, slice):
        return slots_in((value.start, value.stop, value.step))
    return []


def _plan(inputs: int, steps: Sequence[Step], outputs: Sequence[Any]) -> list[tuple[Step, tuple[int, ...]]]:
    """Each step with the slots that die after it. The caller holds its own inputs, so those die too."""
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        used = (
            [*step.inputs, *step.outputs] if isinstance(step, NativeStep) else [*slots_in(step.args), *slots_in(step.kwargs), step.output]
        )
        for slot in used:
            last[slot] = number
    for slot in slots_in(tuple(outputs)):
        last.pop(slot, None)
    dying: dict[int, list[int]] = {}
    for slot, number in last.items():
        dying.setdefault(number, []).append(slot)
    return [(step, tuple(dying.get(number, ()))) for number, step in enumerate(steps)]
