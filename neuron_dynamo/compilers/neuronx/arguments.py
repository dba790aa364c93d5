"""neuronx-cc's command line: what we pin, what the user adds, in one canonical order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from neuron_dynamo.compiler_flags import Flag, parsed
from neuron_dynamo.errors import OptionError
from neuron_dynamo.options import Options

WITH_INTEGER_FLAGS = (2, 27)
"""First release that knows --native-int64 and --implicit-integer-downcast; older ones refuse them."""

_SHORT = {"logical-nc-config": "--lnc"}
_OURS = {
    "framework": "it is always XLA",
    "logfile": "each compile has a log of its own, which the cache keeps",
    "output": "each compile has a directory of its own",
    "target": "set the option 'target'",
}


def arguments(options: Options, release: tuple[int, int]) -> tuple[str, ...]:
    """Arguments that go between the input file and `--output`, for a compiler of `release` (major, minor).

    Ours come first, then NEURON_CC_FLAGS, then `compiler_args`; of flags that exclude each other the last stays, unknown ones pass
    through unchanged, those of the vendor's wrapper are dropped with their values: ours are the options `cache` and `cache_dir`. Raises
    OptionError for a flag that only we may set.
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
    return tuple(_merged([*parsed(pinned), *given]))


def _allowed(args: Iterable[str], where: str, options: Options) -> Iterator[Flag]:
    for flag in parsed(args):
        if flag.of_wrapper:
            continue
        if flag.takes_value and flag.value is None:
            raise OptionError(f"the neuronx-cc flag {flag.tokens[0]} lacks its value", remedy=f"write {flag.tokens[0]} VALUE")
        if flag.name in _OURS:
            raise OptionError(f"{where} holds {' '.join(_tokens(flag))!r}, which the backend sets itself", remedy=_OURS[flag.name])
        if flag.name == "logical-nc-config" and flag.value != str(options.resolved_target.lnc):
            raise OptionError(f"{where} holds {' '.join(_tokens(flag))!r}", remedy="set the option 'lnc', which the runtime heeds too")
        yield flag


def _merged(flags: Sequence[Flag]) -> Iterator[str]:
    last = {flag.name: flag for flag in flags if flag.name}
    seen = set()
    for flag in flags:
        if flag.name in seen:
            continue
        seen.update({flag.name} - {""})
        yield from _tokens(last.get(flag.name, flag))


def _tokens(flag: Flag) -> tuple[str, ...]:
    """What the compiler gets: one spelling for each documented flag."""
    if not flag.takes_value or flag.value is None:
        return flag.tokens
    if flag.name == "optlevel":
        return (f"-O{flag.value}",)
    return (_SHORT.get(flag.name, f"--{flag.name}"), flag.value)
