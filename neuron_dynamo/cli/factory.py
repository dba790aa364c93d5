"""`module:function`: how a command is told which model to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuron_dynamo.errors import InspectError
from neuron_dynamo.factory import call_factory

_FORM = "give MODULE:FUNCTION; the function takes no argument and returns (callable, args) or (callable, args, kwargs)"


def load_model(spec: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The callable that the factory named by `spec` (`module:function`) makes, with its args and kwargs.

    The module is looked up from the current folder first, then on the usual path. Raises InspectError where the spec is
    malformed, the module or function is missing, or the function fails or returns anything else.
    """
    return _unpacked(call_factory(spec, _FORM), spec)


def _unpacked(made: Any, spec: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    if isinstance(made, tuple) and len(made) in (2, 3):
        model, args, *rest = made
        kwargs = rest[0] if rest else {}
        if callable(model) and isinstance(args, (tuple, list)) and isinstance(kwargs, Mapping):
            return model, tuple(args), dict(kwargs)
    kinds = f"({', '.join(type(part).__name__ for part in made)})" if isinstance(made, tuple) else type(made).__name__
    raise InspectError(f"{spec} returned {kinds}", remedy=_FORM)
