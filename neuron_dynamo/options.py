"""Options: one frozen, validated, hashable record; the only reader of environment variables.

A value comes from `torch.compile(options={...})`, else from the environment, else from the default below.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuron_dynamo.errors import OptionError
from neuron_dynamo.target import TARGET_NAMES, Target, get_target


def _option(default: Any, doc: str, *, choices: tuple[str, ...] = (), env: str = "") -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices, "env": env})


@dataclass(frozen=True)
class Options:
    """What a user can set on the backend. `Options.resolve` validates; the README table is tested against these fields."""

    target: str = _option(
        "host",
        "machine that graphs are compiled for",
        choices=TARGET_NAMES,
        env="NEURON_DYNAMO_TARGET",
    )
    lnc: int | None = _option(None, "logical NeuronCore configuration; the target's own by default", env="NEURON_LOGICAL_NC_CONFIG")
    compiler_args: tuple[str, ...] = _option(
        (), "extra neuronx-cc arguments, a string (split as a shell does) or a list", env="NEURON_DYNAMO_COMPILER_ARGS"
    )
    fallback: str = _option(
        "partition",
        "what becomes of an op with no native lowering: run it alone on the host, raise, or run its whole graph in eager PyTorch",
        choices=("partition", "error", "eager"),
        env="NEURON_DYNAMO_FALLBACK",
    )
    rng: str = _option(
        "graph",
        "random numbers: generated in the graph from PyTorch's seed, or drawn by eager PyTorch and fed in (equal bit for bit)",
        choices=("graph", "eager"),
        env="NEURON_DYNAMO_RNG",
    )
    precision: str = _option(
        "warn",
        "types the target lacks (f64, i64): narrow them and warn, narrow silently, or raise",
        choices=("warn", "narrow", "error"),
        env="NEURON_DYNAMO_PRECISION",
    )
    cache_dir: str = _option(
        "~/.cache/neuron_dynamo", "directory of the compile cache; only ever written to, never deleted", env="NEURON_DYNAMO_CACHE_DIR"
    )
    cache: str = _option(
        "on",
        "use the cache; do not; read but never write; raise on a miss",
        choices=("on", "off", "readonly", "require"),
        env="NEURON_DYNAMO_CACHE",
    )
    dump_dir: str | None = _option(None, "directory that receives every stage of every graph as text", env="NEURON_DYNAMO_DUMP_DIR")
    model_name: str | None = _option(None, "name used in reports and dumps; takes no part in the cache key", env="NEURON_DYNAMO_MODEL_NAME")

    @staticmethod
    def resolve(given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Options:
        """Validated Options from `given` (not mutated), then `environ` (os.environ), then defaults. Raises OptionError."""
        environ = os.environ if environ is None else environ
        given = dict(given or {})
        fields = {f.name: f for f in dataclasses.fields(Options)}
        unknown = sorted(str(key) for key in given if key not in fields)
        if unknown:
            raise OptionError(
                f"unknown option{'s' if len(unknown) > 1 else ''} {', '.join(map(repr, unknown))}",
                remedy=f"valid keys are {', '.join(fields)}",
            )
        values: dict[str, Any] = {}
        for name, spec in fields.items():
            variable = spec.metadata["env"]
            if name in given and given[name] is not None:
                values[name] = _checked(name, given[name], spec.metadata["choices"], f"option {name!r}")
            elif environ.get(variable):
                values[name] = _checked(name, environ[variable], spec.metadata["choices"], f"environment variable {variable}")
        options = Options(**values)
        if options.lnc is not None:
            choices = get_target(options.target).lnc_choices
            if options.lnc not in choices:
                if "lnc" in given:
                    raise OptionError(
                        f"option 'lnc' is {options.lnc}, which target {options.target!r} does not have",
                        remedy=f"valid values are {', '.join(map(str, choices))}",
                    )
                options = dataclasses.replace(options, lnc=None)  # the variable speaks of another machine
        return options

    @property
    def resolved_target(self) -> Target:
        return get_target(self.target, self.lnc)

    @property
    def cache_path(self) -> Path:
        """Absolute path of the cache directory, `~` expanded."""
        return Path(self.cache_dir).expanduser().absolute()


def collect_folder(environ: Mapping[str, str] | None = None) -> tuple[Path, str] | None:
    """Where, and under which label, a warm-up wants the graphs of this process (NEURON_DYNAMO_COLLECT, _COLLECT_LABEL), or None."""
    environ = os.environ if environ is None else environ
    folder = environ.get("NEURON_DYNAMO_COLLECT")
    return (Path(folder), environ.get("NEURON_DYNAMO_COLLECT_LABEL", "")) if folder else None


def _checked(name: str, value: Any, choices: tuple[str, ...], where: str) -> Any:
    if choices:
        if value not in choices:
            raise OptionError(f"{where} is {value!r}", remedy=f"valid values are {', '.join(map(repr, choices))}")
        return value
    if name == "lnc":
        if isinstance(value, bool) or not str(value).strip().isdigit():
            raise OptionError(f"{where} is {value!r}", remedy="give a whole number, 1 or 2")
        return int(value)
    if name == "compiler_args":
        if isinstance(value, str):
            try:
                return tuple(shlex.split(value))
            except ValueError as error:
                raise OptionError(f"{where} is {value!r}: {error}", remedy="quote it as a shell would") from error
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise OptionError(f"{where} is {value!r}", remedy="give a string or a list of strings")
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise OptionError(f"{where} is {value!r}", remedy="give a string or a path")
    return os.fspath(value)
