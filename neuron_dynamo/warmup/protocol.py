"""What a compiling process answers. Without PyTorch, since owners of such processes need none."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Done:
    """What became of one attempt at a task. `entry` is the cache entry, file by file, where it was to be sent back.

    `status` is hit, compiled or failed; a failure that is `transient` may well be none at the next attempt. `seconds` is the time
    of the attempt, `peak` the worker's highest resident memory so far in bytes.
    """

    status: str
    message: str = ""
    transient: bool = False
    seconds: float = 0.0
    peak: int = 0
    entry: dict[str, bytes] | None = None

    def to_json(self) -> dict[str, Any]:
        entry = None if self.entry is None else {name: base64.b85encode(data).decode() for name, data in self.entry.items()}
        return {**vars(self), "entry": entry}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Done:
        entry = data["entry"]
        return Done(**{**data, "entry": entry and {name: base64.b85decode(text) for name, text in entry.items()}})
