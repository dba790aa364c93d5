"""What happens to ops that cannot be lowered: the policy of `options["fallback"]` and its one warning."""

from __future__ import annotations

import warnings

from torch.fx import Node

from neuron_dynamo.errors import FallbackWarning, UnsupportedOpError
from neuron_dynamo.lowering.source import source_of
from neuron_dynamo.options import Options
from neuron_dynamo.placement import Placement, op_name

_warned: set[str] = set()


def check_placement(placement: Placement, options: Options) -> None:
    """Raise UnsupportedOpError under `fallback="error"`; otherwise warn once for each (op, dtype, line) that runs on the host."""
    for node, reason in placement.forced.items():
        if options.fallback == "error":
            raise UnsupportedOpError(
                f"cannot lower it for target {options.target}: {reason}",
                op=_describe(node),
                source=source_of(node),
                remedy='use options={"fallback": "partition"} to run it on the host, or rewrite this line',
            )
        source = source_of(node)
        text = f"ND110: {_describe(node)} runs on the host: {reason}" + (f"\n  at: {source}\n      {source.code}" if source else "")
        if text not in _warned:
            _warned.add(text)
            warnings.warn(text, FallbackWarning, stacklevel=2)


def _describe(node: Node) -> str:
    from neuron_dynamo.lowering.describe import describe

    return describe(node, op_name(node))
