"""Rules: functions from one op and the target to what is wrong with it, each registered under the ops that it judges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from neuron_dynamo.lowering.reading import Operation
from neuron_dynamo.target import Target


@dataclass(frozen=True)
class Fault:
    """What a rule says of an op: the fields of Finding that do not depend on where the op stands."""

    code: str
    what: str
    remedy: str
    refused: bool = True


Rule = Callable[[Operation, Target], Iterable[Fault]]
ANY = "*"
"""Stands for every op."""
_RULES: dict[str, list[Rule]] = defaultdict(list)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops of these full names, such as "stablehlo.sort"; ANY for all."""

    def register(judge: Rule) -> Rule:
        for name in names:
            _RULES[name].append(judge)
        return judge

    return register


def rules_for(name: str) -> list[Rule]:
    """The rules that judge an op called `name`."""
    return [*_RULES[ANY], *_RULES.get(name, ())]
