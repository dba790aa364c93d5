"""`module:function`: how a user names what makes a model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from neuron_dynamo.errors import InspectError


def call_factory(spec: str, form: str) -> Any:
    """What the function that `spec` (`module:function`) names returns; `form` tells the user in an error what it should be.

    The module is looked up from the current folder first, then on the usual path. Raises InspectError where the spec is
    malformed, the module or function is missing, or the function fails.
    """
    factory = find(spec, form)
    try:
        return factory()
    except Exception as error:
        raise InspectError(f"{spec} failed: {_described(error)}", remedy="repeat with --debug to see its traceback") from error


def find(spec: str, form: str) -> Any:
    """The callable that `spec` names. Raises InspectError."""
    module_name, colon, function_name = spec.partition(":")
    names = (*module_name.split("."), *function_name.split("."))
    if not colon or not all(name.isidentifier() for name in names) or module_name.endswith(".py"):
        raise InspectError(f"{spec!r} does not name a function", remedy=form)
    found: Any = _import(module_name, spec)
    for name in function_name.split("."):
        if not hasattr(found, name):
            raise InspectError(f"module {module_name!r} has no {function_name!r}", remedy=_known_functions(module_name, form))
        found = getattr(found, name)
    if not callable(found):
        raise InspectError(f"{spec} is of type {type(found).__name__}, not a function", remedy=form)
    return found


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


def _known_functions(module_name: str, form: str) -> str:
    module = sys.modules[module_name]
    names = [name for name, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == module_name]
    return f"it defines {', '.join(names)}" if names else form


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
