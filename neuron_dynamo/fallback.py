"""What happens to ops that cannot be lowered: the policy of `options["fallback"]` and its one warning a graph."""

from __future__ import annotations

import operator
import warnings

from neuron_dynamo.errors import FallbackWarning, UnsupportedOpError
from neuron_dynamo.lowering.describe import describe
from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.options import Options
from neuron_dynamo.placement import Placement, op_name

_warned: set[str] = set()


def check_placement(placement: Placement, options: Options) -> None:
    """Raise UnsupportedOpError under `fallback="error"`; otherwise warn, once a graph, of the ops that run on the host.

    A use of an op that the process was warned of before (same dtypes, shapes and line) is not named again.
    """
    fresh = []
    for node, reason in placement.forced.items():
        if node.target is operator.getitem:
            continue
        source = source_of(node)
        if options.fallback == "error":
            raise UnsupportedOpError(
                f"cannot lower it for target {options.target}: {reason}",
                op=describe(node, op_name(node)),
                source=source,
                remedy='use options={"fallback": "partition"} to run it on the host, or rewrite this line',
            )
        text = f"{describe(node, op_name(node))}: {reason}" + (f"\n    at {source}: {source.code}" if source else "")
        if text not in _warned:
            _warned.add(text)
            fresh.append(text)
    if fresh:
        where = "the whole graph runs in eager PyTorch because of" if options.fallback == "eager" else "on the host, by eager PyTorch, run"
        warnings.warn(f"ND110: {where}\n  " + "\n  ".join(fresh), FallbackWarning, stacklevel=2)
