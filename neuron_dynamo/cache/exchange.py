"""Two directories that change places in one step, which Python's os module does not offer."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> bool:
    """Swap the two names; False where the system or the file system cannot, or one of them is not there."""
    rename = _renameat2()
    return rename is not None and rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


@cache
def _renameat2() -> Any:
    import ctypes

    function = getattr(ctypes.CDLL(None), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function
