"""Runs zoo models through a backend and prints what a debugger wants first: worst errors, graphs, breaks, time.

python -m tests.models.run llama --train --bf16 --backend neuron
python -m tests.models.run            # lists the names
python -m tests.models.run all
"""

from __future__ import annotations

import argparse
import sys
import traceback

import torch

from tests.models import zoo
from tests.models.compare import BACKEND, compiler, errors, run


def report(name: str, training: bool, bf16: bool, backend: str, worst: int, trace: bool) -> bool:
    model = zoo.build(name)
    mode = f"{'training' if training else 'inference'} {'bf16' if bf16 else 'f32'}"
    options = {"rng": "eager"} if model.random and training else {}
    eager = run(model, training=training, autocast=bf16)
    exact = run(model, training=training, float64=True)
    try:
        compiled = run(model, training=training, autocast=bf16, compile_with=compiler(backend, **options))
        found = errors(compiled, eager, exact, torch.bfloat16 if bf16 else torch.float32)
    except Exception as error:  # the point of this tool is to go on to the next model
        print(f"FAIL {name} {mode}: {type(error).__name__}: {str(error).strip()[:600]}")
        if trace:
            traceback.print_exc()
        return False
    bad = [error for error in found if not error.ok]
    rng = torch.equal(compiled.rng_state, eager.rng_state)
    ratio = max(error.compiled / error.allowed if error.allowed else float(not error.ok) for error in found)
    print(
        f"{'FAIL' if bad else 'ok  '} {name} {mode}: {len(found)} tensors, {len(bad)} bad, worst error {ratio:.2f} of the allowed, "
        f"{compiled.graphs} graphs, {compiled.seconds:.1f} s, random state {'equal' if rng else 'differs'}"
    )
    for reason, count in compiled.breaks.items():
        print(f"     graph break x{count}: {reason.strip().splitlines()[0]}")
    for error in sorted(bad, key=lambda e: -e.compiled / max(e.allowed, 1e-300))[:worst]:
        print(f"     {error.name}: error {error.compiled:.3g}, eager's {error.eager:.3g}, allowed {error.allowed:.3g}")
    return not bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="models, or 'all'")
    parser.add_argument("--train", action="store_true", help="train mode, with a backward")
    parser.add_argument("--bf16", action="store_true", help="under bf16 autocast")
    parser.add_argument("--backend", default=BACKEND)
    parser.add_argument("--worst", type=int, default=5, help="how many bad tensors to print")
    parser.add_argument("--trace", action="store_true", help="print the traceback of a failure")
    given = parser.parse_args()
    if not given.names:
        print("\n".join(zoo.names()))
        return 0
    chosen = zoo.names() if given.names == ["all"] else given.names
    results = [report(name, given.train, given.bf16, given.backend, given.worst, given.trace) for name in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
