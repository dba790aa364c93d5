"""A TOML manifest: several models and scripts, shapes, options and targets in one file.

```toml
[options]                            # for every model; a model's own come first
target = "host"

[[model]]
factory = "models:make_llama"
modes = ["inference", "training"]
batch = [1, 4, 8]
targets = ["host"]                   # one warm-up a target; or `options.target`
[model.shapes]
input_ids = "BxS:int64"
[model.dims]
S = [128, 256]

[[script]]
script = "train.py"
args = ["--steps", "1"]
world_size = 8
ranks = "0-7"
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neuron_dynamo.errors import WarmupError
from neuron_dynamo.options import Options
from neuron_dynamo.warmup.jobs import Job, Model, Ranks, Script, parse_modes, parse_ranks, parse_shape

_MODEL = {"factory", "modes", "batch", "targets", "shapes", "dims", "options", "dynamic", "optimizer", "optimizer_args"}
_SCRIPT = {"script", "args", "module"}
_RANKS = {"world_size", "ranks"}


def read_manifest(path: Path) -> list[Job]:
    """The jobs of the manifest at `path`, in its order, models first. Raises WarmupError, or OptionError for a bad option."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WarmupError(f"the manifest {path} cannot be read: {error}", remedy="give a TOML file") from error
    _check_keys(data, {"options", "model", "script"}, path, "the manifest")
    common = _typed(data, "options", dict, path, {})
    jobs: list[Job] = []
    for model in _typed(data, "model", list, path, []):
        jobs += _models(model, common, path)
    for script in _typed(data, "script", list, path, []):
        _check_keys(script, _SCRIPT | _RANKS, path, "[[script]]")
        args = tuple(map(str, _typed(script, "args", list, path, [])))
        module = _typed(script, "module", bool, path, False)
        jobs.append(Script(_required(script, "script", path), args, module, _ranks(script, path)))
    if not jobs:
        raise WarmupError(f"the manifest {path} names no model and no script", remedy="give it a [[model]] or a [[script]]")
    return jobs


def _models(model: Mapping[str, Any], common: Mapping[str, Any], path: Path) -> list[Job]:
    _check_keys(model, _MODEL | _RANKS, path, "[[model]]")
    options = {**common, **_typed(model, "options", dict, path, {})}
    made: list[Job] = []
    for target in _typed(model, "targets", list, path, []) or [None]:
        chosen = {**options, "target": target} if target else options
        Options.resolve(chosen)
        made.append(
            Model(
                _required(model, "factory", path),
                tuple(parse_shape(f"{name}={text}") for name, text in _typed(model, "shapes", dict, path, {}).items()),
                tuple((name, _numbers(values, path)) for name, values in _typed(model, "dims", dict, path, {}).items()),
                _numbers(model.get("batch", []), path),
                parse_modes(_typed(model, "modes", list, path, [])),
                _typed(model, "dynamic", bool, path, False),
                _typed(model, "optimizer", str, path, ""),
                _typed(model, "optimizer_args", dict, path, {}),
                chosen,
                _ranks(model, path),
            )
        )
    return made


def _ranks(table: Mapping[str, Any], path: Path) -> Ranks:
    return parse_ranks(_typed(table, "world_size", int, path, 0), _typed(table, "ranks", str, path, None))


def _numbers(values: Any, path: Path) -> tuple[int, ...]:
    if isinstance(values, int):
        values = [values]
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise WarmupError(f"in {path}, {values!r} is not a list of numbers", remedy="write [1, 4, 8]")
    return tuple(values)


def _required(table: Mapping[str, Any], name: str, path: Path) -> str:
    value: str = _typed(table, name, str, path, "")
    if not value:
        raise WarmupError(f"in {path}, a table lacks {name!r}", remedy=f'write {name} = "..."')
    return value


def _typed(table: Mapping[str, Any], name: str, kind: Callable[..., Any], path: Path, default: Any) -> Any:
    value = table.get(name, default)
    if value is not default and type(value) is not kind:
        raise WarmupError(f"in {path}, {name} is {value!r}", remedy=f"its type is {getattr(kind, '__name__', kind)}")
    return value


def _check_keys(table: Any, known: set[str], path: Path, where: str) -> None:
    unknown = sorted(set(table) - known) if isinstance(table, dict) else [str(table)]
    if unknown:
        raise WarmupError(f"in {path}, {where} has an unknown {', '.join(unknown)}", remedy=f"valid are {', '.join(sorted(known))}")
