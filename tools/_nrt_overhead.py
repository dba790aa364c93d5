"""What a call costs in Python and in foreign calls on the way to a Neuron device, measured with a double of libnrt: no device takes part.

One graph, the sum of two 2x2 tensors, called with the same two tensors each time, and with a new first one each time. Figures are CPU time
of the calling thread (the smallest of several rounds), so that a busy machine disturbs them little. On the way through libnrt the
double copies what it is given and computes nothing; on the host target XLA dispatches and computes the sum.

And one call of a graph with a weight of 2048x2048: one that stays on the device, by each value of option `resident`, and one that
changed, so that it is sent. What else goes there and back is one number.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch

from neuron_dynamo.runtime.nrt_executable import load
from tests.doubles.libnrt import c_compiler, double
from tests.doubles.neff import of_program
from tests.host_programs import add, build, program, spec


def cpu_seconds(call: Callable[[], object], rounds: int, calls: int) -> float:
    """Of one call."""
    best = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(calls):
            call()
        best = min(best, (time.thread_time() - start) / calls)
    return best


def measure(rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """CPU seconds of a call by case, then by way."""
    lib = double()
    lib.reset()
    made = add(spec(2, 2))
    ways = {"host": build(made), "nrt": load(of_program(made), made.signature, library=lib.path)}
    lib.compute(False)
    a, b = torch.ones(2, 2), torch.ones(2, 2)
    fresh = cpu_seconds(a.clone, rounds, calls)
    return {
        "same tensors": {name: cpu_seconds(lambda run=run: run([a, b]), rounds, calls) for name, run in ways.items()},
        "a new tensor": {name: cpu_seconds(lambda run=run: run([a.clone(), b]), rounds, calls) - fresh for name, run in ways.items()},
    }


def weights(rounds: int) -> dict[str, float]:
    """CPU seconds of a call with a weight of 16.8 MB, by what becomes of it; the smallest of `rounds` calls."""
    made = program([spec(1), spec(2048, 2048)], "", ["%a0"], [spec(1)])
    neff, x, weight, found = of_program(made), torch.ones(1), torch.zeros(2048, 2048), {}
    for case, resident, change in (("resident=exact", "exact", 0), ("resident=version", "version", 0), ("sent", "version", 1)):
        run = load(neff, made.signature, library=double().path, resident=resident)
        seconds = []
        for _ in range(rounds + 3):  # the first calls send it
            if change:
                weight.add_(change)
            start = time.thread_time()
            run([x, weight])
            seconds.append(time.thread_time() - start)
        found[case] = min(seconds[3:])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/nrt_overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if c_compiler() is None:
        print("no C compiler (cc, gcc, clang): the libnrt double cannot be built", file=sys.stderr)
        return 2
    results, by_weight = measure(given.rounds, given.calls), weights(given.rounds)
    if given.json:
        print(json.dumps({**results, "weight": by_weight}))
        return 0
    print(f"{'one-op call':14} {'host':>9} {'nrt':>9} {'nrt/host':>9}")
    for case, by_way in results.items():
        print(f"{case:14} {by_way['host'] * 1e6:6.1f} us {by_way['nrt'] * 1e6:6.1f} us {by_way['nrt'] / by_way['host']:9.2f}")
    for case, seconds in by_weight.items():
        print(f"16.8 MB weight, {case:16} {seconds * 1e3:6.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
