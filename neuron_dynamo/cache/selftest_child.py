"""One process of `neuron-dynamo cache selftest`: lowers a model and writes down its keys and programs as JSON.

Arguments: module:function, options as JSON, the file to write, "plain" or "shuffled".
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

_LIBRARIES = ("jaxlib.xla_client", "torch_mlir.ir", "ml_dtypes", "sympy", "torch._inductor.config")


def main(spec: str, options: str, answer: str, order: str) -> None:
    """See the module's text."""
    if order == "shuffled":
        for library in _LIBRARIES:
            with contextlib.suppress(ImportError):
                importlib.import_module(library)
    import torch

    from neuron_dynamo.cli.factory import load_model
    from neuron_dynamo.inspection import inspect

    given = json.loads(options)
    if order == "shuffled":
        inspect(lambda x: x.sin().sum(-1), torch.zeros(3, 5), options=given)
    torch.manual_seed(0)
    model, args, kwargs = load_model(spec)
    programs: dict[str, Any] = {}
    for number, graph in enumerate(inspect(model, *args, options=given, **kwargs).graphs):
        for index, program in enumerate(graph.programs):
            programs[f"graph {number} ({graph.kind}) program {index}"] = {
                "digest": program.key,
                "key": program.cache_key.to_json() if program.cache_key else [],
                "program_key": program.program_key.to_json() if program.program_key else [],
                "graph": program.graph,
                "stablehlo": program.stablehlo,
                "bytes": program.program.hex(),
            }
    Path(answer).write_text(json.dumps(programs))


if __name__ == "__main__":
    main(*sys.argv[1:])
