"""Failures are entries too: a compiler that refused a Program refuses it again, so it is not asked twice.

A failure lies in the writable directory as an entry of its own kind, under the artifact's key but for the kind. That key holds the
compiler's identity, so another compiler, a repaired one, or one with other flags is asked. `cache="refresh"` asks again, and so does
age: MAX_AGE. Only the compiler's own answers count (exit code 70, an NCC code, a program that XLA refuses): memory, time, disk and
signals say nothing about the next attempt (`CompilerError.transient`). Failures are neither looked for in layers nor uploaded: what
replays them to everybody should not be what nobody cleans up.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from neuron_dynamo import errors
from neuron_dynamo.cache.counters import count
from neuron_dynamo.cache.entry import PROGRAM, Artifact, BadEntry
from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.errors import CompilerError, PreflightError, SourceLine
from neuron_dynamo.lowering.program import Program

if TYPE_CHECKING:
    from neuron_dynamo.cache.store import Cache

MAX_AGE = 7 * 24 * 3600.0
"""Seconds for which a failure is remembered."""

_FUTURE = 24 * 3600.0
"""Seconds by which another machine's clock may be ahead."""


@dataclass(frozen=True)
class Failure:
    """What a compiler said of a Program: class and fields of its CompilerError, who it was, and when (seconds since the epoch)."""

    kind: str
    what: str
    op: str
    source: SourceLine | None
    remedy: str
    vendor_code: str
    compiler: str
    at: float
    log: str = field(default="", repr=False)

    @staticmethod
    def of(error: CompilerError, key: CacheKey) -> Failure:
        """The failure that `error` of the compiler in `key` is."""
        parts = dict(key.parts)
        names = [name for name in parts if name.startswith("compiler.") and name != "compiler.compiler"]
        identity = [parts[name] for name in names if len(parts[name]) <= 80]
        version = parts.get("compiler.version")
        compiler = " ".join([parts.get("compiler", "the compiler"), *([version] if version else identity)])
        return Failure(
            type(error).__name__, error.what, error.op, error.source, error.remedy, error.vendor_code, compiler, time.time(), error.log
        )

    @property
    def fresh(self) -> bool:
        """Whether it is young enough to be believed; one of the far future is not."""
        return -_FUTURE < time.time() - self.at < MAX_AGE

    def error(self) -> CompilerError:
        """The CompilerError to raise in place of another compile."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        age = max(0.0, time.time() - self.at)
        remembered = (
            f"{self.what}\n  remembered: {self.compiler} failed on this program on {when} ({_duration(age)} ago), and it was not "
            f"run again; it is when any part of the cache key changes (compiler, flags, program), and after {_duration(MAX_AGE)}"
        )
        remedy = "; ".join(filter(None, (self.remedy, 'cache="refresh" runs the compiler again at once')))
        kind = getattr(errors, self.kind, None)
        kind = kind if isinstance(kind, type) and issubclass(kind, CompilerError) else CompilerError
        error = kind.__new__(kind)  # a class of its own signature has the fields of its base
        CompilerError.__init__(error, remembered, op=self.op, source=self.source, remedy=remedy, vendor_code=self.vendor_code, log=self.log)
        error.remembered = True
        return error

    def to_artifact(self, program: Program) -> Artifact:
        """The entry's contents; the program stays with it, to look at."""
        data = asdict(self)
        log = data.pop("log")
        return Artifact(json.dumps(data, indent=1).encode(), program.signature, log=log, blobs={PROGRAM: program.stablehlo})

    @staticmethod
    def from_artifact(artifact: Artifact) -> Failure:
        """The failure that `to_artifact` wrote. Raises BadEntry if it is something else."""
        try:
            data = json.loads(artifact.payload)
            source = data["source"] and SourceLine(**data["source"])
            text = {name: str(data[name]) for name in ("kind", "what", "op", "remedy", "vendor_code", "compiler")}
            return Failure(**text, source=source, at=float(data["at"]), log=artifact.log)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise BadEntry("it does not say what failed") from error


def failure_key(key: CacheKey) -> CacheKey:
    """The key of the failure to make the artifact of `key`."""
    return CacheKey((("kind", "failure"), *(part for part in key.parts if part[0] != "kind")))


def recall(cache: Cache, key: CacheKey) -> Failure | None:
    """What is remembered of the compiler's failure to make the artifact of `key`, unless it is to be asked again."""
    artifact = cache.own(failure_key(key))
    if artifact is None:
        return None
    try:
        failure = Failure.from_artifact(artifact)
    except BadEntry as error:
        cache.reject(failure_key(key), str(error))
        return None
    return failure if failure.fresh else None


@contextlib.contextmanager
def remembering(cache: Cache, key: CacheKey, program: Program) -> Iterator[None]:
    """The block compiles `program`: a CompilerError that it raises is remembered, unless it is transient; if it succeeds, an older one is
    forgotten.

    Where one is remembered already, that is raised instead of entering the block.
    """
    known = recall(cache, key)
    if known is not None:
        count("remembered")
        raise known.error()
    try:
        yield
    except CompilerError as error:
        count("failures")
        if not error.transient and not isinstance(error, PreflightError):  # which is ours, and said again at no cost
            cache.keep_own(failure_key(key), Failure.of(error, key).to_artifact(program))
        raise
    cache.drop_own(failure_key(key))


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
