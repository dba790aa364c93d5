"""Options: one frozen, validated, hashable record; the only reader of environment variables.

A value comes from `torch.compile(options={...})`, else from the environment, else from the default below.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuron_dynamo.compiler_flags import parsed
from neuron_dynamo.errors import InspectError, OptionError
from neuron_dynamo.target import TARGET_NAMES, Target, get_target
from neuron_dynamo.units import parse_size

Parser = Callable[[Any, str], Any]
"""Makes an option's value of what was given at a place that its error names. Raises OptionError."""


def _path(value: Any, where: str) -> str:
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise OptionError(f"{where} is {value!r}", remedy="give a string or a path")
    return os.fspath(value)


def _arguments(value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise OptionError(f"{where} is {value!r}: {error}", remedy="quote it as a shell would") from error
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(item, str) for item in value):
        return tuple(value if isinstance(value, (list, tuple)) else sorted(value))
    raise OptionError(f"{where} is {value!r}", remedy="give a string or a list of strings")


def _paths(value: Any, where: str) -> tuple[str, ...]:
    paths = value.split(os.pathsep) if isinstance(value, str) else value
    if isinstance(paths, (list, tuple)) and all(isinstance(path, (str, os.PathLike)) for path in paths):
        return tuple(os.fspath(path) for path in paths if str(path))
    raise OptionError(f"{where} is {value!r}", remedy="give a list of paths")


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if str(value).lower() not in known:
        raise OptionError(f"{where} is {value!r}", remedy="give True or False")
    return known[str(value).lower()]


def _positive(kind: type[int] | type[float]) -> Parser:
    def parse(value: Any, where: str) -> int | float:
        try:
            number = kind(str(value)) if not isinstance(value, bool) else kind(0)
        except ValueError:
            number = kind(0)
        if not 0 < number < float("inf"):
            raise OptionError(f"{where} is {value!r}", remedy=f"give a {'whole ' if kind is int else ''}number above 0")
        return number

    return parse


def _json_object(value: Any, where: str) -> str:
    """Canonical JSON text of an object given as such text or as a mapping; its values are kept out of the error, they may be secret."""
    try:
        data = json.loads(value) if isinstance(value, str) else dict(value)
        if not isinstance(data, dict):
            raise TypeError("not an object")
        return json.dumps(data, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{where} is no JSON object", remedy='give one such as {"anon": true}') from error


def _bytes(value: Any, where: str) -> int | None:
    """Bytes that a size means; None for `0` and `unlimited`."""
    text = str(value).strip()
    if text.lower() == "unlimited":
        return None
    try:
        return parse_size(text) or None
    except InspectError as error:
        raise OptionError(f"{where} is {value!r}", remedy="give a size such as 500MB, 10GB or 8GiB, or 'unlimited'") from error


def _size(value: Any, where: str) -> str:
    _bytes(value, where)
    return str(value)


def _option(default: Any, doc: str, parse: Parser = _path, *, choices: tuple[str, ...] = (), env: str = "") -> Any:
    return field(default=default, metadata={"doc": doc, "parse": parse, "choices": choices, "env": env})


@dataclass(frozen=True)
class Options:
    """What a user can set on the backend. `Options.resolve` validates; the README table is tested against these fields."""

    target: str = _option(
        "host",
        "machine that graphs are compiled for",
        choices=TARGET_NAMES,
        env="NEURON_DYNAMO_TARGET",
    )
    lnc: int | None = _option(
        None, "logical NeuronCore configuration; the target's own by default", _positive(int), env="NEURON_LOGICAL_NC_CONFIG"
    )
    compiler_args: tuple[str, ...] = _option(
        (), "extra neuronx-cc arguments, a string (split as a shell does) or a list", _arguments, env="NEURON_DYNAMO_COMPILER_ARGS"
    )
    neuron_cc_flags: tuple[str, ...] = _option(
        (), "the vendor's own variable: neuronx-cc arguments that come before `compiler_args`", _arguments, env="NEURON_CC_FLAGS"
    )
    compiler: str | None = _option(None, "path of neuronx-cc; by default it is looked up on PATH", env="NEURON_DYNAMO_COMPILER")
    compiler_timeout: float | None = _option(
        None,
        "seconds after which one run of neuronx-cc is ended; no limit by default",
        _positive(float),
        env="NEURON_DYNAMO_COMPILER_TIMEOUT",
    )
    compiler_jobs: int | None = _option(
        None,
        "runs of neuronx-cc at one time on this machine, all processes together; by default one for every 16 GB of memory and 2 CPUs",
        _positive(int),
        env="NEURON_DYNAMO_COMPILER_JOBS",
    )
    neuronx_cc_input: str = _option(
        "hlo",
        "form in which neuronx-cc gets programs: an HLO proto, which it documents, or StableHLO bytecode, which recent releases read",
        choices=("hlo", "stablehlo"),
        env="NEURON_DYNAMO_NEURONX_CC_INPUT",
    )
    custom_calls: bool = _option(
        False,
        "hand fusions to neuronx-cc as its own custom calls (AwsNeuronRmsNorm, AwsNeuronSoftmax ...) instead of plain ops; their numerics "
        "are the vendor's",
        _boolean,
        env="NEURON_DYNAMO_CUSTOM_CALLS",
    )
    emulate: str = _option(
        "compiled",
        "where there is no Neuron device, run programs for a Neuron target on the host: those that its compiler took, also without "
        "its compiler, or never",
        choices=("compiled", "always", "never"),
        env="NEURON_DYNAMO_EMULATE",
    )
    runtime: str = _option(
        "nrt",
        "what runs programs on a Neuron device: libnrt itself, or nrtpy, the vendor's Python binding of it, where that is installed",
        choices=("nrt", "nrtpy"),
        env="NEURON_DYNAMO_RUNTIME",
    )
    libnrt: str | None = _option(
        None, "path of libnrt; by default it is looked up in LD_LIBRARY_PATH, then in /opt/aws/neuron/lib", env="NEURON_DYNAMO_LIBNRT"
    )
    resident: str = _option(
        "exact",
        "by what a weight on the device counts as unchanged, so that it is not sent again: its version counter and all of its bytes, "
        "against a copy that is kept on the host; or the counter and a few samples, which is faster and misses small writes through "
        "`.data` or NumPy",
        choices=("exact", "version"),
        env="NEURON_DYNAMO_RESIDENT",
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
    fusions: str = _option(
        "on",
        "name what a program is made of (attention, normalisation, rotary embedding ...) as composites, which compilers may take whole",
        choices=("on", "off"),
        env="NEURON_DYNAMO_FUSIONS",
    )
    cache_dir: str = _option(
        "~/.cache/neuron_dynamo",
        "directory of the compile cache; nothing but its own entries is ever removed from it",
        env="NEURON_DYNAMO_CACHE_DIR",
    )
    cache: str = _option(
        "on",
        "use the cache; do not; read but never write; raise on a miss; compile anew and replace what is there",
        choices=("on", "off", "readonly", "require", "refresh"),
        env="NEURON_DYNAMO_CACHE",
    )
    cache_size: str = _option(
        "20GB",
        "how much the cache directory may hold, as in 500MB or 1.5TB (powers of 1000) or 8GiB; the least recently used entries go first; "
        "`0` and `unlimited` set no bound",
        _size,
        env="NEURON_DYNAMO_CACHE_SIZE",
    )
    cache_layers: tuple[str, ...] = _option(
        (),
        "read-only cache directories below the writable one, nearest first: a list, or a string with ':' between them",
        _paths,
        env="NEURON_DYNAMO_CACHE_LAYERS",
    )
    cache_remote: str | None = _option(
        None, "URL of a cache behind the directories, any of fsspec's: s3://, gs://, file:// ...", env="NEURON_DYNAMO_CACHE_REMOTE"
    )
    cache_uploads: str = _option(
        "on", "whether what is compiled here goes to the remote", choices=("on", "off"), env="NEURON_DYNAMO_CACHE_UPLOADS"
    )
    cache_remote_timeout: float = _option(
        120.0,
        "seconds of silence after which the remote is left alone for a while",
        _positive(float),
        env="NEURON_DYNAMO_CACHE_REMOTE_TIMEOUT",
    )
    cache_remote_options: str | None = _option(
        None,
        "what fsspec's driver is given, as a JSON object or a dict; credentials are better left to its own variables and files",
        _json_object,
        env="NEURON_DYNAMO_CACHE_REMOTE_OPTIONS",
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
                values[name] = _checked(given[name], spec.metadata, f"option {name!r}")
            elif environ.get(variable):
                values[name] = _checked(environ[variable], spec.metadata, f"environment variable {variable}")
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
        """The target as the options have it: where neuronx-cc is told not to keep 64-bit integers, it does not."""
        target = get_target(self.target, self.lnc)
        if target.wide_integers and not target.is_host and _narrows_integers((*self.neuron_cc_flags, *self.compiler_args)):
            return dataclasses.replace(target, wide_integers=False)
        return target

    @property
    def cache_bytes(self) -> int | None:
        """`cache_size` in bytes, None where it sets no bound. Raises OptionError."""
        return _bytes(self.cache_size, "option 'cache_size'")

    @property
    def cache_path(self) -> Path:
        """Absolute path of the cache directory, `~` expanded."""
        return Path(self.cache_dir).expanduser().absolute()

    @property
    def layer_paths(self) -> tuple[Path, ...]:
        """Absolute paths of the read-only cache directories, `~` expanded."""
        return tuple(Path(layer).expanduser().absolute() for layer in self.cache_layers)


def _narrows_integers(args: Iterable[str]) -> bool:
    """Whether the last --native-int64 among neuronx-cc's arguments is other than `enabled`."""
    values = [flag.value for flag in parsed(args) if flag.name == "native-int64"]
    return bool(values) and values[-1] != "enabled"


def collect_folder(environ: Mapping[str, str] | None = None) -> tuple[Path, str] | None:
    """Where, and under which label, a warm-up wants the graphs of this process (NEURON_DYNAMO_COLLECT, _COLLECT_LABEL), or None."""
    environ = os.environ if environ is None else environ
    folder = environ.get("NEURON_DYNAMO_COLLECT")
    return (Path(folder), environ.get("NEURON_DYNAMO_COLLECT_LABEL", "")) if folder else None


def _checked(value: Any, option: Mapping[str, Any], where: str) -> Any:
    """`value` as the option whose metadata is `option` takes it. Raises OptionError."""
    choices = option["choices"]
    if not choices:
        return option["parse"](value, where)
    if value not in choices:
        raise OptionError(f"{where} is {value!r}", remedy=f"valid values are {', '.join(map(repr, choices))}")
    return value
