"""Where a lowering rule is found by the op that it lowers."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)
Guard = Callable[..., str | None]


@dataclass(frozen=True)
class Entry:
    """A rule and its guard. The guard sees the FX node's args and kwargs (with fake tensors for nodes) and returns why
    this use of the op cannot be lowered natively, or None."""

    rule: Rule
    guard: Guard | None


_RULES: dict[Any, Entry] = {}
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
    _loaded = True
