"""neuronx-cc's arguments: which take values and which exclude each other, and one text for all that ask for the same code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_CODE = frozenset(
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
_SILENT = frozenset({"logfile", "output", "verbose"})
"""Documented flags with a value that say where to write and how much to tell."""
_WRAPPERS = frozenset({"cache_dir", "log_level", "dump"})
_WRAPPERS_SWITCHES = frozenset({"no_cache", "retry_failed_compilation"})
"""Flags of the vendor's Python wrapper, with a value and without. It does not hand them on to the compiler."""
_OTHER_NAMES = {"-lnc": "logical-nc-config", "--lnc": "logical-nc-config", "-O": "optlevel"}
_LISTS = frozenset({"implicit-integer-downcast"})


@dataclass(frozen=True)
class Flag:
    """One argument: its documented name in the long form without dashes (of a switch without enable- or disable-), "" if it has none.

    Flags of one name exclude each other. `value` is None for a flag that has none, or lacks it; `tokens` are as given.
    """

    name: str
    value: str | None
    tokens: tuple[str, ...]

    @property
    def takes_value(self) -> bool:
        return self.name in _CODE | _SILENT

    @property
    def of_wrapper(self) -> bool:
        """Whether it is the vendor's wrapper that reads it, and never the compiler."""
        return self.name in _WRAPPERS | _WRAPPERS_SWITCHES


def parsed(args: Iterable[str]) -> Iterator[Flag]:
    """The flags of a command line, in order. A token that no documented flag explains is a Flag without a name."""
    pending = list(args)[::-1]
    while pending:
        token = pending.pop()
        name, value = _split(token)
        if name in _CODE | _SILENT | _WRAPPERS and value is None and pending and not re.match(r"--?[A-Za-z]", pending[-1]):
            value = pending.pop()
            yield Flag(name, value, (token, value))
        else:
            yield Flag(name, value, (token,))


def canonical_flags(args: Iterable[str]) -> str:
    """`args` as a shell would quote them: documented flags first, sorted, each once and as --name=value, as the rightmost has it.

    Flags that do not change the code are left out. Nobody knows what a repetition or the order of undocumented ones means: these
    follow as they were given.
    """
    known: dict[str, str] = {}
    rest: list[str] = []
    for flag in parsed(args):
        if flag.name in _CODE:
            value = _list(flag.value) if flag.name in _LISTS and flag.value is not None else flag.value
            known[flag.name] = f"--{flag.name}" if value is None else f"--{flag.name}={value}"
        elif flag.name in _SWITCHES:
            known[flag.name] = flag.tokens[0]
        elif not flag.name:
            rest.extend(flag.tokens)
    return shlex.join([*(known[name] for name in sorted(known)), *rest])


def _split(token: str) -> tuple[str, str | None]:
    """(documented name or "", value if it is part of the token)."""
    level = re.fullmatch(r"-O=?(\w+)", token)
    if level is not None:
        return "optlevel", level[1]
    switch = re.fullmatch(r"--(?:enable|disable)-(.+)", token)
    if switch is not None:
        return (switch[1], None) if switch[1] in _SWITCHES else ("", None)
    head, equals, value = token.partition("=")
    name = _OTHER_NAMES.get(head) or (head[2:] if head.startswith("--") else "")
    known = name in _CODE | _SILENT | _WRAPPERS | _WRAPPERS_SWITCHES
    return (name, value if equals else None) if known else ("", None)


def _list(value: str) -> str:
    return ",".join(sorted(set(value.split(","))))
