"""The backend names `neuron` and `neuron_dynamo`, and what to say where another package owns one of them."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import warnings

from neuron_dynamo.errors import BackendNameWarning

ENTRY_POINT_GROUP = "torch_dynamo_backends"
DISTRIBUTION = "neuron-dynamo"


def owners(name: str) -> list[str]:
    """Distributions that register the backend `name` (normalised names), first the one that Dynamo takes."""
    points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)
    return [re.sub(r"[-_.]+", "-", point.dist.name).lower() if point.dist else "?" for point in points]


@functools.cache
def warn_of_rivals() -> None:
    """Once a process: say that another package registers `neuron` too, so that a user knows which one ran."""
    rivals = sorted({owner for owner in owners("neuron") if owner != DISTRIBUTION})
    if rivals:
        text = f'ND101: {", ".join(rivals)} also registers the backend "neuron"; backend="neuron_dynamo" is this package in any case'
        warnings.warn(text, BackendNameWarning, stacklevel=2)
