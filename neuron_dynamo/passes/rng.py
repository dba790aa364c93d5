"""Random ops: made pure functions of a state (rng="graph"), or draws by eager PyTorch on the host (rng="eager").

`rng` runs on the joint forward and backward graph before it is partitioned, so that both halves see one state and one mask, and
again on each graph that is compiled. What it leaves in its place is told by `Draw`: an in-place method of eager PyTorch on an empty
tensor, for that is how PyTorch's own kernels define rand, randn, dropout and the rest.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import is_contiguous_or_false
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from neuron_dynamo.passes.output_views import HOST
from neuron_dynamo.runtime import draw as draw_ops  # registers the ops
from neuron_dynamo.runtime.layout import copy_to_strides

aten = torch.ops.aten
ours = torch.ops.neuron_dynamo
_DRAWS = {ours.rng_state.default: "random state", ours.draw.default: "drawn by eager PyTorch"}

_OURS = frozenset(f"neuron_dynamo::{name}" for name in draw_ops.SCHEMAS)

_FORWARD = ("is_forward", "must_be_in_forward")


@dataclass(frozen=True)
class Draw:
    """`method(*params)` on an empty tensor like `template` (a node), or like the random op's own result."""

    method: str
    params: tuple[Any, ...] = ()
    template: Node | None = None


Arguments = dict[str, Any]
"""Arguments of a random op by the names in its schema, defaults filled in."""

_DRAWN: dict[Any, Callable[[Arguments], Draw]] = {
    aten.rand.default: lambda a: Draw("uniform_", (0.0, 1.0)),
    aten.rand_like.default: lambda a: Draw("uniform_", (0.0, 1.0)),
    aten.randn.default: lambda a: Draw("normal_", (0.0, 1.0)),
    aten.randn_like.default: lambda a: Draw("normal_", (0.0, 1.0)),
    aten.randint.default: lambda a: Draw("random_", (0, a["high"])),
    aten.randint.low: lambda a: Draw("random_", (a["low"], a["high"])),
    aten.randint_like.default: lambda a: Draw("random_", (0, a["high"])),
    aten.randint_like.low_dtype: lambda a: Draw("random_", (a["low"], a["high"])),
    aten.normal.float_float: lambda a: Draw("normal_", (a["mean"], a["std"])),
    aten.bernoulli.p: lambda a: Draw("bernoulli_", (a["p"],), a["self"]),
    aten.uniform.default: lambda a: Draw("uniform_", (a["from"], a["to"]), a["self"]),
    aten.normal_functional.default: lambda a: Draw("normal_", (a["mean"], a["std"]), a["self"]),
    aten.exponential.default: lambda a: Draw("exponential_", (a["lambd"],), a["self"]),
    aten.geometric.default: lambda a: Draw("geometric_", (a["p"],), a["self"]),
    aten.log_normal.default: lambda a: Draw("log_normal_", (a["mean"], a["std"]), a["self"]),
    aten.cauchy.default: lambda a: Draw("cauchy_", (a["median"], a["sigma"]), a["self"]),
}


def rng(gm: GraphModule, mode: str) -> None:
    """Rewrite `gm` in place; `mode` is "graph" or "eager". Random ops that have no rewriting (because of their distribution, their
    dtype or a generator of their own) stay whole, and run on the host."""
    rewriter = _Rewriter(gm.graph, mode)
    for node in list(gm.graph.nodes):
        if is_random(node) and node.target not in _DRAWS:
            rewriter.rewrite(node)
        elif node.target is aten.native_dropout_backward.default:
            rewriter.dropout_backward(node)
    tags = [node.meta.get("partitioner_tag") for node in gm.graph.nodes]
    last = max((i for i, tag in enumerate(tags) if tag in _FORWARD), default=-1)
    for position, node in enumerate(gm.graph.nodes):
        if is_random(node):
            # Nodes of a custom autograd.Function's backward carry no tag.
            _pin(node, tags[position] in _FORWARD or (tags[position] is None and position < last))


def place_draws(gm: GraphModule, mode: str) -> None:
    """Mark what `rng` left to the host in a graph that is compiled."""
    for node in list(gm.graph.nodes):
        if node.target in _DRAWS:
            node.meta[HOST] = _DRAWS[node.target]
        elif mode == "eager" and is_random(node):
            node.meta[HOST] = _DRAWS[ours.draw.default]
            _restore_strides(gm.graph, node)


def is_random(node: Node) -> bool:
    """Whether the node advances a generator."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def is_ours(node: Node) -> bool:
    """Whether the node calls an op of runtime/draw.py."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _OURS


def _pin(node: Node, forward: bool) -> None:
    """Make the partitioner run this draw once, in the half of the joint graph in which it was traced, and save its result."""
    node.meta["partitioner_tag"] = "must_be_in_forward" if forward else "must_be_in_backward"
    for saved in (node, *(user for user in node.users if user.target is operator.getitem)):
        saved.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _restore_strides(graph: Graph, node: Node) -> None:
    """Give a draw that reads computed tensors what eager's would read: the layout decides which element gets which number."""
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if source.op == "call_function" and HOST not in source.meta and isinstance(value, torch.Tensor):
            strides = value.stride()
            if all(isinstance(n, int) for n in (*value.shape, *strides)) and not value.is_contiguous():
                with graph.inserting_before(node):
                    copy = graph.call_function(copy_to_strides, (source, list(strides)))
                copy.meta = {**source.meta, HOST: "layout of a random op's operand"}
                node.replace_input_with(source, copy)


class _Rewriter:
    """Emits nodes in the place of random ops. Indices number the draws of a graph, so that no two are alike."""

    def __init__(self, graph: Graph, mode: str) -> None:
        self.graph, self.mode = graph, mode
        self.states: list[Node] = [n for n in graph.nodes if n.target is ours.rng_state.default]
        # The second argument of each of our ops, but for rng_state, is an index.
        self.index = 1 + max((n.args[1] for n in graph.nodes if is_ours(n) and len(n.args) > 1), default=-1)
        self.node: Any = None

    # Emission

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A node before the one that is being rewritten, with its provenance."""
        made = self.graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in self.node.meta.items() if k not in ("val", "tensor_meta", "from_node", HOST)}
        values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.fake_mode():
            made.meta["val"] = target(*values[0], **values[1])
        return made

    def fake_mode(self) -> Any:
        value = self.node.meta["val"]
        return (value[0] if isinstance(value, tuple) else value).fake_mode

    def size(self, template: Node, value: torch.Tensor) -> list[int | Node]:
        """value's shape, with nodes for symbolic sizes."""
        return [n if isinstance(n, int) else self.symbol(n, template) for n in value.shape]

    def symbol(self, size: torch.SymInt, template: Node) -> Node:
        candidate: Node
        for candidate in self.graph.nodes:
            if candidate is self.node:
                break
            value = candidate.meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr == size.node.expr:
                return candidate
        for dim, n in enumerate(template.meta["val"].shape):
            if isinstance(n, torch.SymInt) and n.node.expr == size.node.expr:
                return self.call(aten.sym_size.int, template, dim)
        raise AssertionError(f"no node for size {size}")

    def numbers(self, op: Any, size: Sequence[Any], *args: Any) -> Node:
        """A call of one of our pure random ops under the next index."""
        self.index += 1
        return self.call(op, self.state(), self.index - 1, list(size), *args)

    def state(self) -> Node:
        if not self.states:
            first = next(n for n in self.graph.nodes if n.op != "placeholder")
            with self.graph.inserting_before(first):
                self.states.append(self.call(ours.rng_state.default))
        return self.states[0]

    # Rewriting

    def rewrite(self, node: Node) -> None:
        arguments = _bind(node)
        value = node.meta["val"]
        first = value if isinstance(value, torch.Tensor) else value[0]
        if arguments.get("generator") is not None or first.dtype == torch.complex32 or first.layout != torch.strided:
            return
        self.node = node
        with self.graph.inserting_before(node):
            if node.target in _DRAWN:
                drawn = _DRAWN[node.target](arguments)
                results = None if any(isinstance(p, Node) for p in drawn.params) else [self.drawn(drawn)]
            elif first.dtype.is_complex:
                results = None
            elif node.target is aten.native_dropout.default:
                results = self.dropout(arguments)
            elif self.mode == "graph" and node.target in _DERIVED:
                made = _DERIVED[node.target](self, arguments)
                results = [made] if isinstance(made, Node) else list(made)
            else:
                results = None
        if results is not None:
            self.replace(node, results)

    def replace(self, node: Node, results: list[Node]) -> None:
        if isinstance(node.meta["val"], torch.Tensor):
            node.replace_all_uses_with(results[0])
        else:
            for user in list(node.users):
                user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
                self.graph.erase_node(user)
        self.graph.erase_node(node)

    def drawn(self, what: Draw) -> Node:
        value = self.node.meta["val"]
        like = value if what.template is None else what.template.meta["val"]
        if 0 in like.stride():  # an expanded template, as of vmap: eager draws into a new tensor
            with self.fake_mode():
                like = torch.empty_like(like)
        source = next((n for n in self.node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)), self.node)
        if self.mode == "eager":
            return self.eager(what.method, what.params, source, like, value.dtype)
        return self.laid_out(self.formula(what.method, what.params, self.size(source, like), value.dtype), like)

    def laid_out(self, node: Node, like: torch.Tensor) -> Node:
        """The node, with the strides that its result has in eager PyTorch."""
        with self.fake_mode():
            node.meta["val"] = torch.empty_like(like, dtype=node.meta["val"].dtype)
        return node

    def eager(self, method: str, params: Sequence[Any], source: Node, like: torch.Tensor, dtype: torch.dtype) -> Node:
        """Eager's draw into memory laid out as `like`; `source` is a node whose sizes and strides are like's where symbolic."""
        size, stride = self.size(source, like), []
        if not is_contiguous_or_false(like):
            stride = [n if isinstance(n, int) else self.call(aten.sym_stride.int, source, dim) for dim, n in enumerate(like.stride())]
        self.index += 1
        return self.call(ours.draw.default, method, self.index - 1, size, stride, dtype, list(params))

    def formula(self, method: str, params: Sequence[Any], size: Sequence[Any], dtype: torch.dtype) -> Node:
        """The distribution of an in-place method, from our pure ops. Half floats are computed in float32 and rounded once."""
        if dtype.is_complex:
            return self.complex(method, params, size, dtype)
        if method == "bernoulli_":
            return self.cast(self.numbers(ours.random_bernoulli.default, size, params[0]), dtype)
        if method == "random_":
            return self.numbers(ours.random_integers.default, size, *params, dtype)
        if method == "uniform_" and params == (0.0, 1.0):
            return self.numbers(ours.random_uniform.default, size, dtype)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return self.cast(_FORMULAS[method](self, size, wide, *params), dtype)

    def complex(self, method: str, params: Sequence[Any], size: Sequence[Any], dtype: torch.dtype) -> Node:
        """As PyTorch defines a complex `normal_`: both parts with half the variance, about a mean that is added; `uniform_`: both parts."""
        normal = method == "normal_"
        parts = self.formula(method, (0.0, params[1] / math.sqrt(2)) if normal else params, [*size, 2], dtype.to_real())
        pairs = self.call(aten.view_as_complex.default, parts)
        return self.affine(pairs, 1, params[0]) if normal else pairs

    def cast(self, x: Node, dtype: torch.dtype) -> Node:
        return x if x.meta["val"].dtype == dtype else self.call(aten._to_copy.default, x, dtype=dtype)

    def affine(self, x: Node, scale: float, offset: float) -> Node:
        x = x if scale == 1 else self.call(aten.mul.Tensor, x, scale)
        return x if offset == 0 else self.call(aten.add.Tensor, x, offset)

    # Dropout

    def dropout(self, arguments: Arguments) -> list[Node]:
        """Eager's F.dropout: x times a mask that was divided by 1 - p. The mask travels as bool."""
        x, p, train = arguments["input"], arguments["p"], arguments["train"]
        value = x.meta["val"]
        if train is False:
            return [self.call(aten.clone.default, x), self.call(aten.ones_like.default, x, dtype=torch.bool)]
        if p == 1 or 0 in value.shape:
            mask = self.call(aten.zeros_like.default, x, dtype=torch.bool)
        elif self.mode == "eager":
            with self.fake_mode():
                like = torch.empty_like(value)
            mask = self.cast(self.eager("bernoulli_", (1 - p,), x, like, value.dtype), torch.bool)
        else:
            mask = self.laid_out(self.numbers(ours.random_bernoulli.default, self.size(x, value), 1 - p), value)
        mask.meta[_KEEP] = 1 - p
        return [self.call(aten.mul.Tensor, x, self.noise(mask, value.dtype)), mask]

    def dropout_backward(self, node: Node) -> None:
        """Eager's gradient is the very product with that noise."""
        grad, mask = node.args[:2]
        if not isinstance(mask, Node) or not isinstance(grad, Node) or _KEEP not in mask.meta:
            return
        self.node = node
        with self.graph.inserting_before(node):
            self.replace(node, [self.call(aten.mul.Tensor, grad, self.noise(mask, node.meta["val"].dtype))])

    def noise(self, mask: Node, dtype: torch.dtype) -> Node:
        keep = mask.meta[_KEEP]
        kept = self.cast(mask, dtype)
        return kept if keep in (0, 1) else self.call(aten.div.Tensor, kept, keep)


_KEEP = "neuron_dynamo_keep"
"""Key in node.meta of a dropout mask: the probability to keep."""


def _bind(node: Node) -> Arguments:
    assert isinstance(node.target, torch._ops.OpOverload)
    bound: Arguments = {}
    for position, argument in enumerate(node.target._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        bound[argument.name] = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name, default)
    return bound


# Distributions of in-place methods, in float32 or float64


def _uniform(r: _Rewriter, size: Sequence[Any], wide: torch.dtype, low: float, high: float) -> Node:
    return r.affine(r.numbers(ours.random_uniform.default, size, wide), high - low, low)


def _normal(r: _Rewriter, size: Sequence[Any], wide: torch.dtype, mean: float, std: float) -> Node:
    return r.affine(r.numbers(ours.random_normal.default, size, wide), std, mean)


def _exponential(r: _Rewriter, size: Sequence[Any], wide: torch.dtype, rate: float) -> Node:
    return r.affine(r.numbers(ours.random_exponential.default, size, wide), 1 / rate, 0)


def _geometric(r: _Rewriter, size: Sequence[Any], wide: torch.dtype, p: float) -> Node:
    """The number of trials of an exponential clock: at least 1."""
    trials = r.call(aten.ceil.default, _exponential(r, size, wide, -math.log1p(-p) if p < 1 else math.inf))
    return r.call(aten.clamp_min.default, trials, 1)


def _log_normal(r: _Rewriter, size: Sequence[Any], wide: torch.dtype, mean: float, std: float) -> Node:
    return r.call(aten.exp.default, _normal(r, size, wide, mean, std))


def _cauchy(r: _Rewriter, size: Sequence[Any], wide: torch.dtype, median: float, sigma: float) -> Node:
    angle = r.affine(r.numbers(ours.random_uniform.default, size, wide), math.pi, -math.pi / 2)
    return r.affine(r.call(aten.tan.default, angle), sigma, median)


_FORMULAS: dict[str, Callable[..., Node]] = {
    "uniform_": _uniform,
    "normal_": _normal,
    "exponential_": _exponential,
    "geometric_": _geometric,
    "log_normal_": _log_normal,
    "cauchy_": _cauchy,
}


# Ops whose parameters are tensors, for rng="graph"


def _bernoulli(r: _Rewriter, p: Node, result: torch.Tensor) -> Node:
    wide = torch.float64 if p.meta["val"].dtype == torch.float64 else torch.float32
    uniform = r.numbers(ours.random_uniform.default, r.size(p, p.meta["val"]), wide)
    return r.cast(r.call(aten.lt.Tensor, uniform, r.cast(p, wide)), result.dtype)


def _normal_of(r: _Rewriter, mean: Node | float, std: Node | float) -> Node:
    result = r.node.meta["val"]
    source = next(n for n in (mean, std) if isinstance(n, Node) and n.meta["val"].shape == result.shape)
    normal = r.formula("normal_", (0.0, 1.0), r.size(source, result), result.dtype)
    return r.call(aten.add.Tensor, r.call(aten.mul.Tensor, normal, std), mean)


def _multinomial(r: _Rewriter, a: Arguments) -> Node:
    """The race of exponential clocks: the first to ring, at rates p, is a sample of p; the order of ringing samples without
    replacement."""
    p, count = a["self"], a["num_samples"]
    wide = torch.float64 if p.meta["val"].dtype == torch.float64 else torch.float32
    rates = r.cast(p, wide)
    size = r.size(p, p.meta["val"])
    if not a["replacement"] or count == 1:
        race = r.call(aten.div.Tensor, rates, r.numbers(ours.random_exponential.default, size, wide))
        return r.call(operator.getitem, r.call(aten.topk.default, race, count), 1)
    clocks = r.numbers(ours.random_exponential.default, [*size[:-1], count, size[-1]], wide)
    race = r.call(aten.div.Tensor, r.call(aten.unsqueeze.default, rates, len(size) - 1), clocks)
    return r.call(aten.argmax.default, race, -1)


def _randperm(r: _Rewriter, a: Arguments) -> Node:
    keys = r.numbers(ours.random_integers.default, [a["n"]], -(2**63), 2**63 - 1, torch.int64)
    order = r.call(operator.getitem, r.call(aten.sort.default, keys), 1)
    return r.cast(order, r.node.meta["val"].dtype)


def _rrelu(r: _Rewriter, a: Arguments) -> list[Node]:
    x, value = a["self"], a["self"].meta["val"]
    if not a["training"]:
        slope = (a["lower"] + a["upper"]) / 2
        return [r.call(aten.leaky_relu.default, x, slope), a["noise"]]
    slopes = r.formula("uniform_", (a["lower"], a["upper"]), r.size(x, value), value.dtype)
    noise = r.call(aten.where.ScalarOther, r.call(aten.le.Scalar, x, 0), slopes, 1)
    return [r.call(aten.mul.Tensor, x, noise), noise]


_DERIVED: dict[Any, Callable[[_Rewriter, Arguments], Any]] = {
    aten.bernoulli.default: lambda r, a: _bernoulli(r, a["self"], r.node.meta["val"]),
    aten.bernoulli.Tensor: lambda r, a: _bernoulli(r, a["p"], r.node.meta["val"]),
    aten.normal.Tensor_Tensor: lambda r, a: _normal_of(r, a["mean"], a["std"]),
    aten.normal.Tensor_float: lambda r, a: _normal_of(r, a["mean"], a["std"]),
    aten.normal.float_Tensor: lambda r, a: _normal_of(r, a["mean"], a["std"]),
    aten.multinomial.default: _multinomial,
    aten.randperm.default: _randperm,
    aten.rrelu_with_noise_functional.default: _rrelu,
}
