"""Where a lowering rule is found by the op that it lowers."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from neuron_dynamo.target import Target

Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)
Guard = Callable[..., str | None]


@dataclass(frozen=True)
class Entry:
    """A rule and its guard. The guard sees the FX node's args and kwargs (with fake tensors for nodes) and returns why
    this use of the op cannot be lowered natively, or None. A guard with a keyword-only `target` gets the Target too."""

    rule: Rule
    guard: Guard | None

    def why_not(self, target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """What the guard says of this use on `target`; None where there is no guard."""
        if self.guard is None:
            return None
        return self.guard(*args, **kwargs, target=target) if _asks_target(self.guard) else self.guard(*args, **kwargs)


@functools.cache
def _asks_target(guard: Guard) -> bool:
    parameter = inspect.signature(guard).parameters.get("target")
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY


_RULES: dict[Any, Entry] = {}
_COMPLEX: dict[Any, Rule] = {}
_loaded = False


def lowering(*targets: Any, guard: Guard | None = None) -> Callable[[RuleT], RuleT]:
    """Register a rule `rule(b: Builder, *args, **kwargs) -> Value | tuple[Value | None, ...]` for FX call targets.

    Args and kwargs are the FX node's own, with each tensor node replaced by a Value. A target may be given as a string, such as
    "transformers.grouped_mm_fallback.default", for ops that exist only once another library has defined them.
    """

    def register(rule: RuleT) -> RuleT:
        for target in targets:
            assert target not in _RULES, f"two lowering rules for {target}"
            _RULES[target] = Entry(rule, guard)
        return rule

    return register


def complex_lowering(*targets: Any) -> Callable[[RuleT], RuleT]:
    """Register a rule that takes the place of the one from `lowering` where an operand or the result is complex."""

    def register(rule: RuleT) -> RuleT:
        for target in targets:
            assert target not in _COMPLEX, f"two complex lowering rules for {target}"
            _COMPLEX[target] = rule
        return rule

    return register


def _by_type(rule: Rule, complex_rule: Rule) -> Rule:
    """`complex_rule` where a tensor operand or the first result is complex, else `rule`."""

    def chosen(b: Any, *args: Any, **kwargs: Any) -> Any:
        dtypes = [getattr(x, "dtype", None) for x in (*b.outs[:1], *args)]
        return (complex_rule if any(d is not None and d.is_complex for d in dtypes) else rule)(b, *args, **kwargs)

    return chosen


def find(target: Any) -> Entry | None:
    """The entry for an FX call target, if any."""
    load()
    return _RULES.get(target) or _RULES.get(str(target))


def registered() -> dict[Any, Entry]:
    """All entries by target."""
    load()
    return _RULES


def load() -> None:
    """Import every module of lowering/ops, which registers its rules."""
    global _loaded
    if _loaded:
        return
    from neuron_dynamo.lowering import ops

    for module in sorted(info.name for info in pkgutil.iter_modules(ops.__path__)):
        importlib.import_module(f"{ops.__name__}.{module}")
    for target, complex_rule in _COMPLEX.items():
        entry = _RULES[target]
        _RULES[target] = Entry(_by_type(entry.rule, complex_rule), entry.guard)
    _loaded = True
