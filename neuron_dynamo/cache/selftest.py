"""Self-test of the keys: a model is lowered in processes that differ in all that must not matter, and every byte is compared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from neuron_dynamo.cache.explain import text_diff
from neuron_dynamo.errors import InspectError

_CHILD = "neuron_dynamo.cache.selftest_child"


@dataclass(frozen=True)
class Circumstances:
    """What a process is put in: its hash seed, whether the user's module lies elsewhere (and is renamed, where it is one file),
    whether other libraries are imported and another graph is lowered first, and whether it is another rank with another home."""

    seed: str = "0"
    moved: bool = False
    shuffled: bool = False
    rank: bool = False


@dataclass(frozen=True)
class KeyDifference:
    """One thing that is not the same in two processes: of which program, what, under which circumstances, and the two values or a diff."""

    program: str
    what: str
    cause: str
    detail: str


@dataclass(frozen=True)
class SelfTest:
    """Outcome: keys that were compared, as (program, digest of the artifact's key), and what differed."""

    keys: tuple[tuple[str, str], ...]
    differences: tuple[KeyDifference, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rows = [f"{program}: {digest}" for program, digest in self.keys]
        rows += [f"{d.program}: {d.what} differs ({d.cause})\n{d.detail}" for d in self.differences]
        verdict = f"{len(self.differences)} differences" if self.differences else "equal to the last byte in all processes"
        return "\n".join([*rows, f"{len(self.keys)} programs, {verdict}"])


_PLAIN = Circumstances()
_OTHER = Circumstances("4711", moved=True, shuffled=True, rank=True)
_ONE_BY_ONE = {
    "the same again": _PLAIN,
    "another PYTHONHASHSEED": replace(_PLAIN, seed="4711"),
    "the module in another folder": replace(_PLAIN, moved=True),
    "another order of imports and graphs": replace(_PLAIN, shuffled=True),
    "another rank, home and user": replace(_PLAIN, rank=True),
}


def selftest(spec: str, *, options: Mapping[str, Any] | None = None, timeout: float = 1800.0) -> SelfTest:
    """Lower the model of `spec` ("module:function") in two processes that differ in everything that must not matter.

    Where they disagree, more processes find out which circumstance it was. `timeout` is for each process, in seconds. Raises InspectError
    where a process fails.
    """
    given = {**(options or {}), "cache": "off"}
    reference = _run(spec, _PLAIN, given, timeout)
    keys = tuple((name, program["digest"]) for name, program in reference.items())
    if not (found := _compare(reference, _run(spec, _OTHER, given, timeout), "all circumstances together")):
        return SelfTest(keys, ())
    single = [d for cause, where in _ONE_BY_ONE.items() for d in _compare(reference, _run(spec, where, given, timeout), cause)]
    return SelfTest(keys, tuple(single or found))


def _compare(reference: dict[str, Any], other: dict[str, Any], cause: str) -> list[KeyDifference]:
    found = []
    for name in reference | other:
        one, two = reference.get(name), other.get(name)
        if one is None or two is None:
            found.append(KeyDifference(name, "the list of programs", cause, "only one process has it"))
            continue
        for kind in ("key", "program_key"):
            parts = {part: (dict(one[kind]).get(part), dict(two[kind]).get(part)) for part in dict([*one[kind], *two[kind]])}
            found += [
                KeyDifference(name, f"{kind} part {part}", cause, f"{mine!r}\n{theirs!r}")
                for part, (mine, theirs) in parts.items()
                if mine != theirs
            ]
        for what in ("graph", "stablehlo", "bytes"):
            if one[what] != two[what] and not (what == "bytes" and one["stablehlo"] != two["stablehlo"]):
                found.append(KeyDifference(name, what, cause, text_diff(one[what], two[what], "plain", cause)))
    return found


def _run(spec: str, where: Circumstances, options: dict[str, Any], timeout: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="neuron_dynamo_selftest_") as scratch:
        folder, name = _placed(spec, Path(scratch), where)
        package = str(Path(__file__).parents[2])
        path = [str(folder), str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), package]
        environment = {**os.environ, "PYTHONHASHSEED": where.seed, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}
        if where.rank:
            environment |= {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "HOME": scratch, "USER": "other", "LOGNAME": "other"}
        answer = Path(scratch) / "answer.json"
        command = [sys.executable, "-m", _CHILD, name, json.dumps(options), str(answer), "shuffled" if where.shuffled else "plain"]
        try:
            done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as error:
            raise InspectError(f"a process that lowers {spec} took longer than {timeout:.0f} s") from error
        if done.returncode:
            raise InspectError(
                f"a process that lowers {spec} failed: {done.stderr.strip()[-2000:]}", remedy=f"see 'neuron-dynamo inspect {spec}'"
            )
        programs: dict[str, Any] = json.loads(answer.read_text())
        return programs


def _placed(spec: str, scratch: Path, where: Circumstances) -> tuple[Path, str]:
    """The folder to work in, and the spec of the user's function there: a copy, with other line numbers, where it is to be moved."""
    here = Path.cwd()
    if not where.moved:
        return here, spec
    elsewhere = scratch / "else" / "where"
    elsewhere.mkdir(parents=True)
    module, _, function = spec.partition(":")
    top = here / module.partition(".")[0]
    single = top.with_suffix(".py")
    if top.is_dir() and (top / "__init__.py").exists():
        shutil.copytree(top, elsewhere / top.name, ignore=shutil.ignore_patterns("__pycache__"))
        return elsewhere, spec
    if "." not in module and single.is_file():
        renamed = f"{module}_moved"
        (elsewhere / f"{renamed}.py").write_text("# moved\n" * 7 + single.read_text())
        return elsewhere, f"{renamed}:{function}"
    return elsewhere, spec  # an installed module: only the working directory is another
