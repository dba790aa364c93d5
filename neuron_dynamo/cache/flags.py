"""Compiler arguments in canonical form: two command lines that ask neuronx-cc for the same code have the same text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_VALUED = frozenset(
    {
        "framework",
        "target",
        "model-type",
        "auto-cast",
        "auto-cast-type",
        "native-int64",
        "implicit-integer-downcast",
        "distribution-strategy",
        "logical-nc-config",
        "optlevel",
    }
)
"""Documented flags with one value, of which the rightmost counts."""
_SWITCHES = frozenset({"mixed-precision-accumulation", "saturate-infinity", "fast-context-switch", "fast-loading-neuron-binaries"})
"""Documented pairs of --enable-X and --disable-X, of which the rightmost counts."""
_SILENT = frozenset({"logfile", "output", "verbose", "cache_dir", "log_level"})
"""Flags with a value that say where to write and how much to tell."""
_SILENT_SWITCHES = frozenset({"no_cache", "retry_failed_compilation", "dump"})
"""Flags without a value that other wrappers of the compiler read."""
_OTHER_NAMES = {"-lnc": "logical-nc-config", "--lnc": "logical-nc-config", "-O": "optlevel"}
_LISTS = frozenset({"implicit-integer-downcast"})


def canonical_flags(args: Iterable[str]) -> str:
    """`args` as a shell would quote them: documented flags first, sorted, each once and as --name=value, as the rightmost has it.

    Flags that do not change the code are left out. Nobody knows what a repetition or the order of undocumented ones means: these
    follow as they were given.
    """
    known: dict[str, str] = {}
    rest: list[str] = []
    pending = list(args)
    while pending:
        flag = pending.pop(0)
        name, value = _split(flag)
        if name in _VALUED | _SILENT:
            if value is None and pending and not re.match(r"--?[A-Za-z]", pending[0]):
                value = pending.pop(0)
            if name in _VALUED:
                known[name] = f"--{name}" if value is None else f"--{name}={_list(value) if name in _LISTS else value}"
        elif name not in _SILENT_SWITCHES or value is not None:
            switch = re.fullmatch(r"--(enable|disable)-(.+)", flag)
            if switch is not None and switch[2] in _SWITCHES:
                known[switch[2]] = flag
            else:
                rest.append(flag)
    return shlex.join([*(known[name] for name in sorted(known)), *rest])


def _split(flag: str) -> tuple[str, str | None]:
    """(documented name or "", value if it is part of the flag)."""
    level = re.fullmatch(r"-O=?(\d+)", flag)
    if level is not None:
        return "optlevel", level[1]
    name, equals, value = flag.partition("=")
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name], value if equals else None
    return name[2:] if name.startswith("--") else "", value if equals else None


def _list(value: str) -> str:
    return ",".join(sorted(set(value.split(","))))
