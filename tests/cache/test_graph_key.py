"""The description of a graph: every mutation that can change a Program changes it, nothing else does, and what it cannot say has no key."""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule

from neuron_dynamo import custom
from neuron_dynamo.cache.graph_key import NoKeyError, describe_graph, graph_key
from neuron_dynamo.lowering.regions import COMPOSITE, REGIONS, Composite, composite
from neuron_dynamo.target import get_target

aten = torch.ops.aten
NAN, INF = math.nan, math.inf


def tensor(*shape: int, dtype: torch.dtype = torch.float32, stride: tuple[int, ...] | None = None) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta") if stride else torch.empty(shape, dtype=dtype, device="meta")


def graph(
    op: Any = aten.add.Tensor,
    args: Callable[[Any, Any, Any], tuple[Any, ...]] = lambda x, y, w: (x, y),
    kwargs: dict[str, Any] | None = None,
    x: torch.Tensor | None = None,
    value: Any = None,
    literal: Any = None,
    names: tuple[str, str, str] = ("x", "y", "w"),
    outputs: Callable[[Any, Any], tuple[Any, ...]] = lambda x, made: (made,),
    trace: str = 'File "a.py", line 1, in f',
) -> Graph:
    """w is a literal; `made` is what the op makes of inputs x and y."""
    result = Graph(owning_module=GraphModule(torch.nn.Module(), Graph()))
    setattr(result.owning_module, names[2], torch.tensor([1.0, 2.0]) if literal is None else literal)
    inputs = [result.placeholder(name) for name in names[:2]]
    for node in inputs:
        node.meta["val"] = tensor(2, 3)
    if x is not None:
        inputs[0].meta["val"] = x
    constant = result.get_attr(names[2])
    made = result.call_function(op, args(*inputs, constant), kwargs or {})
    made.meta.update(val=tensor(2, 3) if value is None else value, stack_trace=trace)
    result.output(outputs(inputs[0], made))
    return result


BASE = describe_graph(graph())


def test_the_description_can_be_read() -> None:
    assert BASE.splitlines()[0] == "%0 = input : float32[2, 3]"
    assert BASE.splitlines()[3] == "%3 = aten::add.Tensor(%0, %1) : float32[2, 3]"
    assert BASE.splitlines()[4:] == ["%4 = output (%3,)", "aliases []"]


MUTATIONS: dict[str, Any] = {
    "op": {"op": aten.sub.Tensor},
    "overload": {"op": aten.add.Scalar},
    "operand order": {"args": lambda x, y, w: (y, x)},
    "operand": {"args": lambda x, y, w: (x, x)},
    "operand is the literal": {"args": lambda x, y, w: (x, w)},
    "argument 1": {"args": lambda x, y, w: (x, 1)},
    "argument 1.0": {"args": lambda x, y, w: (x, 1.0)},
    "argument True": {"args": lambda x, y, w: (x, True)},
    "argument '1'": {"args": lambda x, y, w: (x, "1")},
    "argument 0.0": {"args": lambda x, y, w: (x, 0.0)},
    "argument -0.0": {"args": lambda x, y, w: (x, -0.0)},
    "argument next after 1.0": {"args": lambda x, y, w: (x, math.nextafter(1.0, 2.0))},
    "argument nan": {"args": lambda x, y, w: (x, NAN)},
    "argument inf": {"args": lambda x, y, w: (x, INF)},
    "argument -inf": {"args": lambda x, y, w: (x, -INF)},
    "argument None": {"args": lambda x, y, w: (x, None)},
    "argument 1j": {"args": lambda x, y, w: (x, 1j)},
    "argument -0.0+1j": {"args": lambda x, y, w: (x, complex(-0.0, 1.0))},
    "list": {"args": lambda x, y, w: (x, [0, 1])},
    "list in another order": {"args": lambda x, y, w: (x, [1, 0])},
    "tuple": {"args": lambda x, y, w: (x, (0, 1))},
    "nested list": {"args": lambda x, y, w: (x, [0, [1]])},
    "slice": {"args": lambda x, y, w: (x, slice(0, 1))},
    "dtype argument": {"args": lambda x, y, w: (x, torch.int8)},
    "memory format": {"args": lambda x, y, w: (x, torch.channels_last)},
    "keyword": {"kwargs": {"alpha": 2}},
    "keyword value": {"kwargs": {"alpha": 3}},
    "keyword name": {"kwargs": {"beta": 2}},
    "input shape": {"x": tensor(3, 2)},
    "input dtype": {"x": tensor(2, 3, dtype=torch.float64)},
    "0-d input": {"x": tensor()},
    "result dtype": {"value": tensor(2, 3, dtype=torch.int32)},
    "result shape": {"value": tensor(6)},
    "several results": {"value": (tensor(2, 3), None)},
    "literal": {"literal": torch.tensor([1.0, 2.5])},
    "literal -0.0": {"literal": torch.tensor([-0.0, 2.0])},
    "literal 0.0": {"literal": torch.tensor([0.0, 2.0])},
    "literal dtype": {"literal": torch.tensor([1.0, 2.0], dtype=torch.float64)},
    "literal shape": {"literal": torch.tensor([[1.0, 2.0]])},
    "0-d literal": {"literal": torch.tensor(1.0)},
    "empty literal": {"literal": torch.empty(0)},
    "bool literal": {"literal": torch.tensor([True, False])},
    "no output": {"outputs": lambda x, made: ()},
    "output twice": {"outputs": lambda x, made: (made, made)},
    "output order": {"outputs": lambda x, made: (x, made)},
    "other output order": {"outputs": lambda x, made: (made, x)},
    "getitem": {"op": operator.getitem, "args": lambda x, y, w: (x, 0)},
    "getitem of another": {"op": operator.getitem, "args": lambda x, y, w: (x, 1)},
}


def test_every_mutation_changes_the_description() -> None:
    descriptions = {name: describe_graph(graph(**changes)) for name, changes in MUTATIONS.items()}
    descriptions |= {"base": BASE, "aliases": describe_graph(graph(), ((0, 0),)), "other aliases": describe_graph(graph(), ((0, 1),))}
    same = collections.defaultdict(list)
    for name, description in descriptions.items():
        same[graph_key(description, get_target("host")).digest].append(name)
    assert [names for names in same.values() if len(names) > 1] == []


HARMLESS: dict[str, Any] = {
    "names": {"names": ("input_1", "arg", "weight_7")},
    "source line": {"trace": 'File "/somewhere/else.py", line 99, in other'},
    "stride of an input": {"x": tensor(2, 3, stride=(1, 2))},
    "stride of a literal": {"literal": torch.tensor([1.0, 9.0, 2.0, 9.0])[::2]},
    "literal as a parameter": {"literal": torch.nn.Parameter(torch.tensor([1.0, 2.0]))},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_edits_do_not_change_the_description(name: str) -> None:
    assert describe_graph(graph(**HARMLESS[name])) == BASE


def test_order_of_keywords_and_index_of_a_device_do_not_count() -> None:
    one = graph(kwargs={"dtype": torch.int8, "device": torch.device("cpu")})
    assert describe_graph(one) == describe_graph(graph(kwargs={"device": torch.device("cpu", 3), "dtype": torch.int8}))
    assert describe_graph(one) != describe_graph(graph(kwargs={"device": torch.device("meta"), "dtype": torch.int8}))


def test_targets_and_toolchain_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    host, chip = get_target("host"), get_target("trn2")
    keys = [graph_key(BASE, target) for target in (host, chip, get_target("trn2", 1), get_target("trn1"))]
    keys += [graph_key(BASE, dataclasses.replace(host, **{name: value})) for name, value in (("ops", frozenset()), ("widening_dot", True))]
    assert len({key.digest for key in keys}) == 6
    assert [name for name, *_ in keys[1].differing(keys[2])] == ["lnc"]
    assert [name for name, *_ in keys[0].differing(keys[4])] == ["target_properties"]
    for part in ("kind", "graph", "package", "torch", "torch-mlir", "numpy", "ml_dtypes", "stablehlo", "format"):
        assert dict(keys[0].parts)[part], part
    monkeypatch.setattr("neuron_dynamo.cache.graph_key.package_digest", lambda: "another")
    assert [name for name, *_ in keys[0].differing(graph_key(BASE, host))] == ["package"]


def _loop(body: Callable[[torch.Tensor], torch.Tensor], name: str, traced: bool = True) -> str:
    region = torch.fx.symbolic_trace(lambda x: body(x))
    for node in region.graph.nodes:
        node.meta["val"] = tensor(2)
        node.target = aten.sin.default if node.target is torch.sin else aten.cos.default if node.target is torch.cos else node.target
    owner = GraphModule(torch.nn.Module(), Graph())
    setattr(owner, name, region)
    result = Graph(owning_module=owner)
    x = result.placeholder("x")
    x.meta["val"] = tensor(2)
    made = result.call_function(torch.ops.higher_order.map_impl, (result.get_attr(name), [x], []))
    made.meta.update({"val": (tensor(2),), **({REGIONS: {name: region}} if traced else {})})
    result.output((made,))
    return describe_graph(result)


def test_sub_graphs_count_with_their_content_and_not_their_name() -> None:
    assert _loop(torch.sin, "body_0") == _loop(torch.sin, "renamed")
    assert _loop(torch.sin, "body_0") != _loop(torch.cos, "body_0")
    with pytest.raises(NoKeyError, match="not traced"):
        _loop(torch.sin, "body_0", traced=False)


class Pair(collections.namedtuple("Pair", "a b")):
    pass


class Size(int):
    pass


class Tagged(torch.Tensor):
    pass


def _users(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


with FakeTensorMode():
    FAKE = torch.empty(2)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"op": _users}, "_users"),
        ({"op": lambda x, y: x}, "lambda"),
        ({"args": lambda x, y, w: (x, Pair(0, 1))}, "Pair"),
        ({"args": lambda x, y, w: (x, Size(1))}, "Size"),
        ({"args": lambda x, y, w: (x, torch.Generator())}, "Generator"),
        ({"literal": torch.ones(2).as_subclass(Tagged)}, "Tagged"),
        ({"literal": FAKE}, "FakeTensor"),
        ({"literal": torch.eye(2).to_sparse()}, "constant"),
        ({"value": object()}, "object"),
        ({"x": torch.empty(2, 3).to_sparse()}, "dense"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_exact_description_has_no_key(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(NoKeyError, match=what):
        describe_graph(graph(**changes))


@torch.library.custom_op("keytest::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_what_a_rule_of_the_users_reads_is_unknown() -> None:
    op = torch.ops.keytest.twice.default
    custom.register_lowering(twice)(lambda b, x: b.add(x, x))
    try:
        with pytest.raises(NoKeyError, match="rule of the user's"):
            describe_graph(graph(op=op, args=lambda x, y, w: (x,)))
    finally:
        custom.unregister(twice)
    assert "keytest::twice.default(%0)" in describe_graph(graph(op=op, args=lambda x, y, w: (x,)))


def test_composites_count_with_their_decomposition() -> None:
    """Two fusions over equal operands are one node each, and differ only in what they are made of."""

    def described(op: Any, attributes: dict[str, Any]) -> str:
        inner = Graph()
        x = inner.placeholder("x")
        x.meta["val"] = tensor(2, 3)
        made = inner.call_function(op, (x,))
        made.meta["val"] = tensor(2, 3)
        inner.output((made,))
        whole = graph(op=composite, args=lambda x, y, w: (x,), value=(tensor(2, 3),))
        next(node for node in whole.nodes if node.target is composite).meta[COMPOSITE] = Composite("act", attributes, inner)
        return describe_graph(whole)

    texts = {described(op, attributes) for op in (aten.silu.default, aten.relu.default) for attributes in ({}, {"dim": 1}, {"dim": 2})}
    assert len(texts) == 6
    assert described(aten.silu.default, {}) == described(aten.silu.default, {})
