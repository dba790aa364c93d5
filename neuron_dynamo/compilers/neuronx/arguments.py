"""neuronx-cc's command line: what we pin, what the user adds, in one canonical order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from neuron_dynamo.errors import OptionError
from neuron_dynamo.options import Options

WITH_INTEGER_FLAGS = (2, 27)
"""First release that knows --native-int64 and --implicit-integer-downcast; older ones refuse them."""

_ALIASES = {"--logical-nc-config": "--lnc", "-lnc": "--lnc", "--optlevel": "-O"}
_VALUED = frozenset(
    {
        "--auto-cast",
        "--auto-cast-type",
        "--distribution-strategy",
        "--framework",
        "--implicit-integer-downcast",
        "--lnc",
        "--logfile",
        "--model-type",
        "--native-int64",
        "--output",
        "--target",
        "--verbose",
        "-O",
    }
)
_SWITCHES = {
    "--enable-mixed-precision-accumulation": "mixed-precision-accumulation",
    "--disable-mixed-precision-accumulation": "mixed-precision-accumulation",
    "--enable-saturate-infinity": "saturate-infinity",
    "--enable-fast-context-switch": "fast-context-switch",
    "--enable-fast-loading-neuron-binaries": "fast-loading-neuron-binaries",
}
_OURS = {
    "--framework": "it is always XLA",
    "--logfile": "each compile has a log of its own, which the cache keeps",
    "--output": "each compile has a directory of its own",
    "--target": "set the option 'target'",
}
_WRAPPERS = ("--no_cache", "--cache_dir", "--retry_failed_compilation", "--log_level", "--dump")
"""Flags of the vendor's Python wrapper, which it does not hand on; ours are the options `cache` and `cache_dir`."""


@dataclass(frozen=True)
class _Flag:
    """`name` decides which flags exclude each other ("" for those that we do not know); `tokens` are what the compiler gets."""

    name: str
    tokens: tuple[str, ...]


def arguments(options: Options, release: tuple[int, int]) -> tuple[str, ...]:
    """Arguments that go between the input file and `--output`, for a compiler of `release` (major, minor).

    Ours come first, then NEURON_CC_FLAGS, then `compiler_args`; of flags that exclude each other the last stays, unknown ones pass
    through unchanged. Raises OptionError for a flag that only we may set.
    """
    target = options.resolved_target
    pinned = ["--framework", "XLA", "--target", target.name]
    if len(target.lnc_choices) > 1:
        pinned += ["--lnc", str(target.lnc)]
    pinned += ["-O2", "--auto-cast", "none"]
    if release >= WITH_INTEGER_FLAGS:
        if target.wide_integers:
            pinned += ["--native-int64", "enabled"]
        # Lowering splits sums of integers that must be exact; what is left fits, and `none` would refuse it.
        pinned += ["--implicit-integer-downcast", "all"]
    given = [*_allowed(options.neuron_cc_flags, "NEURON_CC_FLAGS", options), *_allowed(options.compiler_args, "compiler_args", options)]
    return tuple(_merged([*_flags(pinned), *given]))


def _allowed(tokens: Sequence[str], where: str, options: Options) -> Iterator[_Flag]:
    for flag in _flags(tokens):
        first = flag.tokens[0].partition("=")[0]
        if first in _WRAPPERS:
            continue
        if flag.name in _OURS:
            raise OptionError(f"{where} holds {' '.join(flag.tokens)!r}, which the backend sets itself", remedy=_OURS[flag.name])
        if flag.name == "--lnc" and flag.tokens[-1] != str(options.resolved_target.lnc):
            raise OptionError(f"{where} holds {' '.join(flag.tokens)!r}", remedy="set the option 'lnc', which the runtime heeds too")
        yield flag


def _flags(tokens: Iterable[str]) -> Iterator[_Flag]:
    waiting = iter(tokens)
    for token in waiting:
        head, equals, value = token.partition("=")
        name = _ALIASES.get(head, head)
        if name not in _VALUED and len(token) == 3 and token.startswith("-O"):
            name, value, equals = "-O", token[2], "="
        if name in _VALUED:
            if not equals:
                following = next(waiting, None)
                if following is None:
                    raise OptionError(f"the neuronx-cc flag {token} lacks its value", remedy=f"write {token} VALUE")
                value = following
            yield _Flag(name, (f"-O{value}",) if name == "-O" else (name, value))
        elif token in _SWITCHES:
            yield _Flag(_SWITCHES[token], (token,))
        else:
            yield _Flag("", (token,))


def _merged(flags: Sequence[_Flag]) -> Iterator[str]:
    last = {flag.name: flag for flag in flags if flag.name}
    seen = set()
    for flag in flags:
        if flag.name in seen:
            continue
        seen.update({flag.name} - {""})
        yield from last.get(flag.name, flag).tokens
