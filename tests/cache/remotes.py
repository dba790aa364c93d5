"""Remotes that the tests share: an S3 server on this machine, and file systems of fsspec's that are slow, that fail, or that hang."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Address of an S3 server (moto) in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Running on " in line:
                break
        else:
            raise AssertionError("".join(lines))
        # Nobody reads what it prints from here on, and a full pipe would stop it.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield line.split("Running on ")[1].strip()
    finally:
        process.terminate()
        process.wait()


def s3_environment(address: str) -> dict[str, str]:
    """The variables by which boto finds a server and its credentials."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


class Scripted(MemoryFileSystem):
    """`scripted://`: memory whose every call waits for `gate` and then does `fault`; `calls` counts them by name."""

    protocol = "scripted"
    store: dict[str, Any] = {}  # noqa: RUF012  (fsspec's own way of sharing)
    pseudo_dirs = [""]  # noqa: RUF012
    gate: threading.Event | None = None
    fault: BaseException | None = None
    refuses_writes = False
    calls: list[str] = []  # noqa: RUF012

    def _act(self, name: str) -> None:
        self.calls.append(name)
        if self.gate is not None:
            self.gate.wait()
        if self.fault is not None:
            raise self.fault
        if self.refuses_writes and name == "write":
            raise PermissionError("Access Denied")

    def cat_file(self, *args: Any, **kwargs: Any) -> bytes:
        self._act("read")
        return super().cat_file(*args, **kwargs)

    def exists(self, *args: Any, **kwargs: Any) -> bool:
        self._act("exists")
        return super().exists(*args, **kwargs)

    def pipe_file(self, *args: Any, **kwargs: Any) -> None:
        self._act("write")
        super().pipe_file(*args, **kwargs)


@contextlib.contextmanager
def scripted() -> Iterator[type[Scripted]]:
    """A fresh `scripted://` file system."""
    fsspec.register_implementation("scripted", Scripted, clobber=True)
    fsspec.filesystem("memory")
    for name, value in {"store": {}, "pseudo_dirs": [""], "gate": None, "fault": None, "refuses_writes": False, "calls": []}.items():
        setattr(Scripted, name, value)
    try:
        yield Scripted
    finally:
        if Scripted.gate is not None:
            Scripted.gate.set()
