"""Real processes for the cache tests, cheaply: forked from a server that has imported torch once. They talk over a pipe."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEADLINE = 300.0
"""Seconds after which a child hangs, on whatever machine."""

ROUNDS = int(os.environ.get("NEURON_DYNAMO_FAULT_ROUNDS", "1"))
"""How often the fault tests repeat what depends on chance: NEURON_DYNAMO_FAULT_ROUNDS=100 ./tools/test tests/cache."""

_ROOT = str(Path(__file__).parents[2])
_context = multiprocessing.get_context("forkserver")


class Child:
    """A process that runs `function(talk, *args)`; both sides `send` and `receive`."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        _start_server()
        self._connection, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(theirs, function, args), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: Any) -> None:
        self._connection.send(message)

    def receive(self) -> Any:
        """What it sends next. Fails if it dies or raises, or says nothing within DEADLINE."""
        assert self._connection.poll(DEADLINE), "the child hangs"
        kind, message = self._connection.recv()
        assert kind == "message", message
        return message

    def finish(self) -> Any:
        """What `function` returned."""
        message = self.receive()
        self._process.join(DEADLINE)
        assert self._process.exitcode == 0
        return message

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self._process.join(DEADLINE)


class Talk:
    """The child's end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        self._connection.send(("message", message))

    def receive(self) -> Any:
        return self._connection.recv()


@contextmanager
def heard() -> Iterator[list[str]]:
    """Texts of the warnings issued inside."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts.extend(str(warning.message) for warning in caught)


def _run(connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    talk = Talk(connection)
    try:
        talk.send(function(talk, *args))
    except BaseException:
        connection.send(("error", traceback.format_exc()))


def _start_server() -> None:
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = _ROOT if path is None else f"{_ROOT}{os.pathsep}{path}"
    try:
        _context.set_forkserver_preload(["tests.cache.faults"])
        forkserver.ensure_running()
    finally:
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path
