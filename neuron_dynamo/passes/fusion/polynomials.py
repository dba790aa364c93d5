"""Elementwise nodes read as polynomials: a formula is then the same however its author factored it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.passes.fusion.reading import COPIES, is_cast

aten = torch.ops.aten

Polynomial = Mapping[str, float]
"""Monomial -> coefficient. A monomial is the letters of its variables in order, as often as they are factors: "xxt" is x * x * t."""

_DEGREE = 6
_DEPTH = 12
_FANOUT = 48
_SAME = 1e-7  # what float32 can hold
_CANCELLED = 1e-12


def plus(left: Polynomial, right: Polynomial, factor: float = 1) -> Polynomial:
    """left + factor * right"""
    total = dict(left)
    for monomial, coefficient in right.items():
        before = total.pop(monomial, 0)
        after = before + factor * coefficient
        if not abs(after) <= _CANCELLED * abs(before):
            total[monomial] = after
    return total


def times(left: Polynomial, right: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for first, factor in left.items():
        total = plus(total, {"".join(sorted(first + second)): coefficient for second, coefficient in right.items()}, factor)
    return total


def derivative(polynomial: Polynomial, variable: str) -> Polynomial:
    """By `variable`, the others held."""
    return {m.replace(variable, "", 1): c * m.count(variable) for m, c in polynomial.items() if variable in m}


def close(left: Polynomial, right: Polynomial) -> bool:
    """Whether they are the same polynomial, as far as float32 can tell."""
    return left.keys() == right.keys() and all(math.isclose(left[m], right[m], rel_tol=_SAME) for m in left)


def text(polynomial: Polynomial) -> str:
    return " + ".join("*".join([f"{c:.10g}", *m]) for m, c in sorted(polynomial.items(), key=lambda item: (len(item[0]), item)))


def _quotient(left: Polynomial, right: Polynomial) -> Polynomial | None:
    return times(left, {"": 1 / right[""]}) if right.keys() == {""} else None


def _power(base: Polynomial, exponent: Polynomial) -> Polynomial | None:
    if exponent.keys() != {""} or exponent[""] not in (1, 2, 3):
        return None
    total = base
    for _ in range(int(exponent[""]) - 1):
        total = times(total, base)
    return total


_Rule = Callable[[Polynomial, Polynomial, float], Polynomial | None]
_RULES: dict[Any, _Rule] = {
    aten.add.Tensor: plus,
    aten.add.Scalar: plus,
    aten.sub.Tensor: lambda a, b, alpha: plus(a, b, -alpha),
    aten.sub.Scalar: lambda a, b, alpha: plus(a, b, -alpha),
    aten.rsub.Scalar: lambda a, b, alpha: plus(b, a, -alpha),
    aten.mul.Tensor: lambda a, b, _: times(a, b),
    aten.mul.Scalar: lambda a, b, _: times(a, b),
    aten.div.Tensor: lambda a, b, _: _quotient(a, b),
    aten.div.Scalar: lambda a, b, _: _quotient(a, b),
    aten.pow.Tensor_Scalar: lambda a, b, _: _power(a, b),
    aten.neg.default: lambda a, _, __: times(a, {"": -1.0}),
}


def is_real(node: Any) -> bool:
    """Whether `node` is a tensor of floats."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def is_same(node: Any) -> bool:
    """Whether `node` gives the numbers that it takes, at most rounded."""
    return (
        is_real(node)
        and node.op == "call_function"
        and bool(node.args)
        and is_real(node.args[0])
        and (is_cast(node) or node.target in COPIES)
    )


def above(node: Any, depth: int = 6) -> Iterator[Node]:
    """`node` and what it is computed from by arithmetic, the nearest first: what its polynomial may be in."""
    level = [node] if is_real(node) else []
    seen: set[Node] = set()
    while level and depth:
        yield from level
        seen.update(level)
        arithmetic = [n for n in level if n.target in _RULES or is_same(n)]
        level = list(dict.fromkeys(a for n in arithmetic for a in n.args if is_real(a) and a not in seen))
        depth -= 1


class Reader:
    """Reads nodes as polynomials in the variables given by their letters."""

    def __init__(self, **variables: Node) -> None:
        self._read: dict[Node, Polynomial | None] = {node: {letter: 1.0} for letter, node in variables.items()}

    def read(self, value: Any, depth: int = _DEPTH) -> Polynomial | None:
        """None for what is no polynomial, or too large a one."""
        if isinstance(value, (int, float)):
            return {"": float(value)} if value else {}
        if not isinstance(value, Node):
            return None
        if value not in self._read:
            self._read[value] = self._compute(value, depth - 1) if depth and is_real(value) else None
        return self._read[value]

    def below(self, node: Node) -> Iterator[tuple[Node, Polynomial]]:
        """The nodes computed from `node` that are polynomials, too, the nearest first."""
        found = [node]
        for reached in found:
            for user in reached.users:
                polynomial = self.read(user) if user not in found and len(found) < _FANOUT else None
                if polynomial is not None:
                    found.append(user)
                    yield user, polynomial

    def _compute(self, node: Node, depth: int) -> Polynomial | None:
        if is_same(node):
            return self.read(node.args[0], depth)
        rule = _RULES.get(node.target)
        if node.op != "call_function" or rule is None or len(node.args) > 2 or not node.kwargs.keys() <= {"alpha"}:
            return None
        alpha = node.kwargs.get("alpha", 1)
        operands = [self.read(operand, depth) for operand in (*node.args, 0)[:2]]
        if operands[0] is None or operands[1] is None or not isinstance(alpha, (int, float)):
            return None
        made = rule(operands[0], operands[1], float(alpha))
        sound = made is not None and all(len(monomial) <= _DEGREE and math.isfinite(made[monomial]) for monomial in made)
        return made if sound else None


def between(end: Node, *variables: Node) -> tuple[Node, ...]:
    """What `end` is computed by from `variables`, of which it must be a function."""
    found = dict.fromkeys([end])
    waiting = [end]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found and source not in variables:
                found[source] = None
                waiting.append(source)
    return tuple(found)
