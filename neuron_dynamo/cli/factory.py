"""`module:function`: how a command is told which model to look at."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neuron_dynamo.errors import InspectError

_FORM = "give MODULE:FUNCTION; the function takes no argument and returns (callable, args) or (callable, args, kwargs)"


def load_model(spec: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The callable that the factory named by `spec` (`module:function`) makes, with its args and kwargs.

    The module is looked up from the current folder first, then on the usual path. Raises InspectError where the spec is
    malformed, the module or function is missing, or the function fails or returns anything else.
    """
    module_name, colon, function_name = spec.partition(":")
    names = (*module_name.split("."), *function_name.split("."))
    if not colon or not all(name.isidentifier() for name in names) or module_name.endswith(".py"):
        raise InspectError(f"{spec!r} does not name a function", remedy=_FORM)
    factory: Any = _import(module_name, spec)
    for name in function_name.split("."):
        if not hasattr(factory, name):
            raise InspectError(f"module {module_name!r} has no {function_name!r}", remedy=_known_functions(module_name))
        factory = getattr(factory, name)
    if not callable(factory):
        raise InspectError(f"{spec} is of type {type(factory).__name__}, not a function", remedy=_FORM)
    try:
        made = factory()
    except Exception as error:
        raise InspectError(f"{spec} failed: {_described(error)}", remedy="repeat with --debug to see its traceback") from error
    return _unpacked(made, spec)


def _import(module_name: str, spec: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}.")
        if absent:
            remedy = f"run the command in the folder that {module_name.partition('.')[0]!r} lies in (now {folder}), or install it"
            raise InspectError(f"there is no module {module_name!r}", remedy=remedy) from error
        raise InspectError(f"importing {spec} failed: {_described(error)}", remedy="repeat with --debug to see its traceback") from error


def _known_functions(module_name: str) -> str:
    module = sys.modules[module_name]
    names = [name for name, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == module_name]
    return f"it defines {', '.join(names)}" if names else _FORM


def _unpacked(made: Any, spec: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    if isinstance(made, tuple) and len(made) in (2, 3):
        model, args, *rest = made
        kwargs = rest[0] if rest else {}
        if callable(model) and isinstance(args, (tuple, list)) and isinstance(kwargs, Mapping):
            return model, tuple(args), dict(kwargs)
    kinds = f"({', '.join(type(part).__name__ for part in made)})" if isinstance(made, tuple) else type(made).__name__
    raise InspectError(f"{spec} returned {kinds}", remedy=_FORM)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
