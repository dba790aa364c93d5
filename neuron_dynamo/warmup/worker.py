"""What compiles one program: `compile_task`, and the process that does it for others. It needs the cache and a compiler, no model.

The process (`python -m neuron_dynamo.warmup.worker`) reads a JSON line for each task from its standard input and answers with one on its
standard output. It ends when its input does, even in the middle of a compile, so that none outlives its owner.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import resource
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from neuron_dynamo.cache import PROGRAM, Artifact, Cache, CacheKey, program_key
from neuron_dynamo.cache.entry import decode_entry, encode_entry
from neuron_dynamo.cache.failures import remembering
from neuron_dynamo.compilers import compiler_for
from neuron_dynamo.compilers.base import Compiled
from neuron_dynamo.errors import CacheMissError, CompilerError, NeuronDynamoError
from neuron_dynamo.lowering.program import Program, Signature
from neuron_dynamo.options import Options
from neuron_dynamo.recording import describe, restored_options
from neuron_dynamo.warmup.protocol import Done


@dataclass(frozen=True)
class Task:
    """One program to compile, complete: all that a worker on any host needs."""

    graph: str
    key: CacheKey
    options: Options
    program: Program

    def to_json(self) -> dict[str, Any]:
        return {
            "graph": self.graph,
            "key": self.key.to_json(),
            "options": describe(replace(self.options, cache="on", dump_dir=None)),
            "signature": self.program.signature.to_json(),
            "stablehlo": base64.b85encode(self.program.stablehlo).decode(),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Task:
        """Inverse of `to_json`. Raises LookupError, TypeError or ValueError for anything else."""
        program = Program(base64.b85decode(data["stablehlo"]), Signature.from_json(data["signature"]))
        return Task(data["graph"], CacheKey.from_json(data["key"]), restored_options(data["options"]), program)


def compile_task(task: Task, send: bool = False) -> Done:
    """See to it that the cache of `task.options` has the artifact; with `send`, bring its entry along. Raises nothing."""
    start = time.perf_counter()
    try:
        artifact, status = _artifact(task)
    except CompilerError as error:
        return _failed(str(error), error.transient, start)
    except NeuronDynamoError as error:
        return _failed(str(error), False, start)
    except (MemoryError, OSError) as error:
        return _failed(f"{type(error).__name__}: {error}", True, start)
    except Exception:
        return _failed(traceback.format_exc(), False, start)
    entry = encode_entry(task.key, artifact) if send else None
    return Done(status, seconds=time.perf_counter() - start, peak=_peak(), entry=entry)


def _artifact(task: Task) -> tuple[Artifact, str]:
    compiler = compiler_for(task.options)
    key = program_key(task.program.digest, task.options.resolved_target, task.options, compiler)
    if key.digest != task.key.digest:
        parts = "; ".join(f"{name} is {own!r}, wanted {wanted!r}" for name, own, wanted in key.differing(task.key))
        raise CacheMissError(
            f"this worker would make the artifact of another key: {parts}",
            remedy="give workers the same versions, sources and, for the host target, the same CPU as the job has",
        )
    cache = Cache(task.options)

    def make() -> Artifact:
        start = time.perf_counter()
        with remembering(cache, key, task.program):
            made = Compiled.of(compiler.compile(task.program))
        timings = {"compile": time.perf_counter() - start}
        return Artifact(made.payload, task.program.signature, timings, made.log, {PROGRAM: task.program.stablehlo, **made.blobs})

    found = cache.obtain(key, task.graph, make)
    assert found.artifact is not None
    return found.artifact, "compiled" if found.level == "miss" else "hit"


def publish(key: CacheKey, entry: dict[str, bytes], options: Options) -> None:
    """Put an entry that a worker sent into the cache of `options`. Raises BadEntry if it was damaged on the way."""
    Cache(options).put(key, decode_entry(key, lambda name, limit: entry[name]))


def _failed(message: str, transient: bool, start: float) -> Done:
    return Done("failed", message, transient, time.perf_counter() - start, _peak())


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Serve tasks until standard input ends. The only argument is the bound on this process's data in bytes, 0 for none."""
    limit = int(sys.argv[1])
    if limit:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    with contextlib.suppress(OSError):  # should the machine run out of memory all the same, this process goes first
        Path("/proc/self/oom_score_adj").write_text("500")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a compiler prints is no answer
    warnings.simplefilter("ignore")  # the owner of this process checks what the cache holds
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, tasks), daemon=True).start()
    while True:
        request = json.loads(tasks.get())
        done = compile_task(Task.from_json(request["task"]), request["send"])
        answers.write(json.dumps(done.to_json()).encode() + b"\n")
        answers.flush()


def _read(source: BinaryIO, tasks: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        tasks.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
