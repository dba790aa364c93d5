"""Which zoo model has which fusion; run by ./tools/fusions. Models are only lowered, never run."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

import neuron_dynamo
from neuron_dynamo.lowering.program import ENTRY
from neuron_dynamo.lowering.reading import functions
from neuron_dynamo.report import FusionReport, GraphReport
from tests.models import zoo

PATH = Path(__file__).resolve().parents[1] / "docs" / "fusions.md"
KINDS = ("inference", "forward", "backward")
HEAD = """# Fusions

Made by `./tools/fusions`; do not edit. The models are those of `tests/models`, small and randomly initialised, in inference and training.
A fusion is a `stablehlo.composite` named `neuron_dynamo.<fusion>`, with the very ops that it stands for as its decomposition; "ops" are
those at the top level of all programs of that kind, without fusions and with them. `options={"fusions": "off"}` leaves them out;
`options={"custom_calls": True}` hands those that neuronx-cc has a custom call for to it by that name.

| model | graphs | fusions | ops, off and on |
|---|---|---|---:|
"""
MISSES = """
## Near misses

Where a pattern began to match and did not end, and why. These stay plain ops, or smaller fusions.

| model | graphs | fusion | times | why not |
|---|---|---|---:|---|
"""


@dataclass
class Row:
    """What the graphs of one kind of one model have."""

    model: str
    kind: str
    found: Counter[str] = field(default_factory=Counter)
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    plain: int = 0
    fused: int = 0


def rows(name: str) -> list[Row]:
    """One row for inference, forward and backward of a zoo model; those that it has."""
    made: dict[str, Row] = {}
    for training in (False, True):
        for fusions in ("off", "on"):
            for graph in _graphs(name, training, fusions):
                row = made.setdefault(graph.kind, Row(name, graph.kind))
                if fusions == "off":
                    row.plain += _top_level(graph)
                else:
                    row.fused += _top_level(graph)
                    row.found.update(f.name for f in graph.fusions if f.nodes)
                    row.missed.update((f.name, _reason(f)) for f in graph.fusions if not f.nodes)
    return [made[kind] for kind in KINDS if kind in made]


def _graphs(name: str, training: bool, fusions: str) -> list[GraphReport]:
    model = zoo.build(name)
    module = model.module.train(training)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(dict(model.dynamo)), torch.set_grad_enabled(training), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graphs = neuron_dynamo.inspect(module, *model.args, options={"fusions": fusions, "cache": "off"}, **model.kwargs).graphs
    # Parts of a model without parameters are inference graphs in training, too.
    return [graph for graph in graphs if (graph.kind == "inference") != training]


def _top_level(graph: GraphReport) -> int:
    return sum(len(functions(program.program)[ENTRY].operations) for program in graph.programs)


def _reason(fusion: FusionReport) -> str:
    """Without the names of nodes, which are counted through the graph."""
    return "a node of another computation stands between its nodes" if "stands between its nodes" in fusion.reason else fusion.reason


def line(row: Row) -> str:
    """The row of a table."""
    found = ", ".join(f"{name} {count}" if count > 1 else name for name, count in sorted(row.found.items())) or "none"
    return f"| {row.model} | {row.kind} | {found} | {row.plain} to {row.fused} |"


def document(made: list[Row]) -> str:
    """The whole page."""
    misses = [
        f"| {row.model} | {row.kind} | {name} | {count} | {reason} |"
        for row in made
        for (name, reason), count in sorted(row.missed.items())
    ]
    return HEAD + "\n".join(map(line, made)) + "\n" + MISSES + "\n".join(misses) + "\n"


def main() -> None:
    made = []
    for name in sys.argv[1:] or zoo.names():
        of_model = rows(name)
        made += of_model
        print(*map(line, of_model), sep="\n", file=sys.stderr, flush=True)
    if not sys.argv[1:]:  # the rows of some models alone are no page
        PATH.write_text(document(made))


if __name__ == "__main__":
    main()
