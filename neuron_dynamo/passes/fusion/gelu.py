"""GELU (Hendrycks and Gimpel 2016) and SiLU as models write them out: with tanh, erf or sigmoid, in any factoring, and their gradients.

The tanh or sigmoid that a forward saves is a second result of its composite, and the third operand of the backward's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from neuron_dynamo.passes.fusion.polynomials import Polynomial, Reader, above, between, close, derivative, is_same, plus, text, times
from neuron_dynamo.passes.fusion.reading import calls, other, shape
from neuron_dynamo.passes.fusion.region import Match, Miss

aten = torch.ops.aten


@dataclass(frozen=True)
class _Form:
    """An activation of x by way of t = function(argument of x). `slope` is the function's derivative, in t and in e = exp(-x*x/2).
    Where `telling`, the argument alone is enough of a beginning to tell why there was no end."""

    name: str
    function: Any
    argument: Polynomial
    value: Polynomial
    slope: Polynomial
    attributes: Mapping[str, str] = field(default_factory=dict)
    telling: bool = True

    @cached_property
    def gradient(self) -> Polynomial:
        """By x, times the incoming gradient g."""
        through = times(self.slope, derivative(self.argument, "x"))
        return times({"g": 1.0}, plus(derivative(self.value, "x"), times(derivative(self.value, "t"), through)))


_ROOT = math.sqrt(2 / math.pi)
_HALF = {"x": 0.5, "tx": 0.5}
_LOGISTIC = {"t": 1.0, "tt": -1.0}
_FORMS = (
    _Form("gelu", aten.tanh.default, {"x": _ROOT, "xxx": 0.044715 * _ROOT}, _HALF, {"": 1.0, "tt": -1.0}, {"approximate": "tanh"}),
    _Form("gelu", aten.erf.default, {"x": math.sqrt(0.5)}, _HALF, {"e": 2 / math.sqrt(math.pi)}, {"approximate": "none"}),
    _Form("quick_gelu", aten.sigmoid.default, {"x": 1.702}, {"tx": 1.0}, _LOGISTIC),
    _Form("silu", aten.sigmoid.default, {"x": 1.0}, {"tx": 1.0}, _LOGISTIC, telling=False),
)
_EXPONENT = {"xx": -0.5}


def _forms(function: Any) -> list[_Form]:
    return [form for form in _FORMS if form.function is function]


def written_out(node: Any) -> Match | Miss | None:
    """The activation whose tanh, erf or sigmoid `node` is."""
    forms = _forms(node.target)
    reasons = []
    for x in above(node.args[0]) if forms else ():
        argument = Reader(x=x).read(node.args[0])
        if argument is None or argument.keys() != forms[0].argument.keys():
            continue
        right = [form for form in forms if close(argument, form.argument)]
        form = (right or forms)[0]
        ends = [(end, value) for end, value in Reader(x=x, t=node).below(node) if value.keys() == form.value.keys()]
        end = next((end for end, value in ends if right and close(value, form.value)), None)
        if end is not None and shape(end) == shape(x):
            return Match(form.name, between(end, x), node, form.attributes, (x,))
        if ends and not right:
            reasons.append(f"t is the {_name(node)} of {text(argument)}, not of {text(form.argument)}")
        elif right and (ends or form.telling):
            reasons.append(f"t, the {_name(node)}, ends in {text(ends[0][1]) if ends else 'something else'}, not in {text(form.value)}")
    return Miss(forms[0].name, node, reasons[0]) if reasons else None


def gradient(node: Any) -> Match | Miss | None:
    """The gradient of an activation, found from the slope of its tanh, erf or sigmoid: 1 - t*t, exp(-x*x/2) or 1 - t."""
    missed = None
    for form, t, slope in _slopes(node):
        computed = calls(t, form.function)
        for g, x in _factors(node, t):
            variables = {**slope, "t": t, "g": g, "x": x}
            if len({*variables.values()}) < len(variables) or not shape(g) == shape(x) == shape(t):
                continue
            if (computed and not _is(form.argument, x, t)) or ("e" in slope and not _is(_EXPONENT, x, node)):
                continue
            for end, value in Reader(**variables).below(node):
                if close(value, form.gradient):
                    operands = (g, x) if computed else (g, x, t)
                    attributes: dict[str, bool | int | float | str] = dict(form.attributes)
                    if not computed:
                        attributes["written_out"] = True
                    return Match(f"{form.name}_backward", between(end, *operands), node, attributes, operands)
                if value.keys() == form.gradient.keys():
                    missed = missed or Miss(f"{form.name}_backward", node, f"it is {text(value)}, not {text(form.gradient)}")
    return missed


def _name(node: Any) -> str:
    return str(node.target.overloadpacket.__name__)


def _is(polynomial: Polynomial, x: Node, function: Node) -> bool:
    """Whether `function` is of this polynomial in `x`."""
    argument = Reader(x=x).read(function.args[0])
    return argument is not None and close(argument, polynomial)


def _slopes(node: Any) -> Iterator[tuple[_Form, Node, dict[str, Node]]]:
    """The forms whose slope `node` may be part of, their t, and the variable besides t that it is in."""
    if calls(node, aten.exp.default):
        erfs = dict.fromkeys(user for n in above(node.args[0]) for user in n.users if calls(user, aten.erf.default))
        yield from ((form, t, {"e": node}) for t in erfs for form in _forms(aten.erf.default))
    elif calls(node, aten.rsub.Scalar) and node.args[1] == 1:
        taken = node.args[0]
        square = calls(taken, aten.mul.Tensor) and taken.args[0] is taken.args[1]
        function = aten.tanh.default if square else aten.sigmoid.default
        t = _unrounded(taken.args[0] if square else taken)
        if isinstance(t, Node) and (calls(t, function) or t.op == "placeholder"):
            yield from ((form, t, {}) for form in _forms(function))


def _unrounded(node: Any) -> Any:
    while is_same(node):
        node = node.args[0]
    return node


def _factors(slope: Node, t: Node) -> Iterator[tuple[Node, Node]]:
    """What may be g and x in the product of g, x and numbers that multiplies the slope."""
    own = Reader(s=slope, t=t)
    for made in (slope, *(made for made, _ in own.below(slope))):
        for user in made.users:
            factor = other(user, made) if calls(user, aten.mul.Tensor) else None
            for product in _unscaled(factor):
                if calls(product, aten.mul.Tensor):
                    pairs = list(itertools.product(_unscaled(product.args[0]), _unscaled(product.args[1])))
                    yield from (*pairs, *((b, a) for a, b in pairs))


def _unscaled(node: Any) -> Iterator[Node]:
    """`node`, and what it is but for numbers that multiply it."""
    while isinstance(node, Node):
        yield node
        scaled = is_same(node) or (calls(node, aten.mul.Tensor, aten.div.Tensor) and not isinstance(node.args[1], Node))
        node = node.args[0] if scaled else None
