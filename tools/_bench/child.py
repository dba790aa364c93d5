"""One measurement in a process of its own: `python -m tools._bench.child REQUEST`, a JSON object; the answer is the last line, JSON."""

from __future__ import annotations

import copy
import functools
import json
import resource
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

from tools._bench.measure import TRACE

MEMORY_CALLS = 3


def peak_bytes() -> int:
    """Peak resident memory of this process since exec. VmHWM, because ru_maxrss starts at the parent's figure."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def wrap(target: Any, backend: str) -> Any:
    import torch

    if backend == "eager":
        return target
    return torch.compile(target, backend="eager" if backend == TRACE else backend)


def stepper(workload: Any, module: Any, called: Any, mode: str) -> Callable[[], Any]:
    """A function that does one step: a call without gradients, or forward, loss and backward into fresh gradients."""
    import torch

    module.train(mode == "training")

    @torch.no_grad()
    def infer() -> Any:
        return called(*workload.args)

    def train() -> Any:
        for parameter in module.parameters():
            parameter.grad = None
        loss = workload.loss(called(*workload.args))
        loss.backward()
        return loss

    return train if mode == "training" else infer


def first_call(backend: str, model: str, mode: str) -> dict[str, Any]:
    """Seconds from before torch.compile() to the end of the first step, then the peak memory after a few more steps."""
    from tools._bench.models import build

    workload = build(model)
    start = time.perf_counter()
    step = stepper(workload, workload.module, wrap(workload.module, backend), mode)
    step()
    seconds = time.perf_counter() - start
    for _ in range(MEMORY_CALLS):
        step()
    return {"seconds": seconds, "peak": peak_bytes()}


def steady(backends: list[str], model: str, mode: str, rounds: int, calls: int) -> dict[str, Any]:
    """Median seconds of a step for each backend, measured in turns; and how far each one's numbers are from eager's."""
    from tools._bench.models import build

    workload = build(model)
    steps = {}
    outputs = {}
    for backend in backends:
        module = copy.deepcopy(workload.module)
        steps[backend] = stepper(workload, module, wrap(module, backend), mode)
        outputs[backend] = comparable(steps[backend](), module)
    baseline = outputs.get("eager")
    return {
        "seconds": in_turns(steps, rounds, calls),
        "difference": {name: relative(values, baseline) for name, values in outputs.items()} if baseline else {},
    }


def comparable(out: Any, module: Any) -> list[Any]:
    """The float tensors that a step leaves: its outputs and the gradients."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    tensors += [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    return [tensor.detach().clone() for tensor in tensors]


def relative(values: list[Any], baseline: list[Any]) -> float:
    """Largest difference, each tensor's relative to its norm (and to 1e-3 of the largest norm: some gradients are truly zero)."""
    if len(values) != len(baseline):
        return float("inf")
    largest = max(float(tensor.norm()) for tensor in baseline)
    return max(float((got - want).norm()) / max(float(want.norm()), 1e-3 * largest) for got, want in zip(values, baseline, strict=True))


def in_turns(steps: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, float]:
    """Median seconds of one call of each; every round gives each one `calls` calls, and starts with another one.

    The first call of a turn is not counted: the caches and thread pools are then still those of the one before.
    """
    names = list(steps)
    for step in steps.values():
        step()
        step()
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            steps[name]()
            for _ in range(calls):
                start = time.perf_counter()
                steps[name]()
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def overhead(backends: list[str], arguments: int, rounds: int, calls: int) -> dict[str, Any]:
    """Median seconds of a call of a graph with one op, a concatenation of that many 4-element tensors, without gradients."""
    import torch

    def concatenate(*parts: torch.Tensor) -> torch.Tensor:
        return torch.cat(parts)

    tensors = [torch.randn(4) for _ in range(arguments)]
    steps = {}
    with torch.no_grad():
        for backend in backends:
            # A code object for each: Dynamo keeps its compiled entries on it, and nobody shall search through another's.
            code = concatenate.__code__.replace(co_name=f"concatenate_{backend}")
            called = wrap(types.FunctionType(code, globals(), closure=concatenate.__closure__), backend)
            steps[backend] = functools.partial(called, *tensors)
            if not torch.equal(steps[backend](), torch.cat(tensors)):
                raise AssertionError(f"{backend} returns other numbers than eager")
        return {"seconds": in_turns(steps, rounds, calls)}


def main() -> None:
    warnings.simplefilter("ignore")
    request = json.loads(sys.argv[1])
    what = {"first_call": first_call, "steady": steady, "overhead": overhead}[request.pop("what")]
    answer = what(**request)
    sys.stdout.flush()
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
