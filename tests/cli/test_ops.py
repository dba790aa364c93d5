"""neuron-dynamo ops: every op is found by its name, with the place of its rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import neuron_dynamo
from neuron_dynamo.cli.main import main
from neuron_dynamo.lowering import registry
from neuron_dynamo.op_index import IndexedOp, index


def test_rule_decomposition_composite_and_host_are_told_apart() -> None:
    how = {op.name: op for op in index()}
    assert how["aten.cumsum.default"].how == "rule"
    assert how["aten._safe_softmax.default"].how == "decomposition"
    assert how["aten.narrow.default"].how == "composite"
    assert how["aten.linalg_eig.default"] == IndexedOp("aten.linalg_eig.default", "host")
    assert "aten.add_.Tensor" not in how


def test_the_place_of_a_rule_is_its_line() -> None:
    (op,) = index("aten.cumsum.default")
    file, _, line = op.where.rpartition(":")
    text = (Path(neuron_dynamo.__file__).parents[1] / file).read_text().splitlines()
    assert any("cumsum" in near for near in text[int(line) - 1 : int(line) + 8])


def test_every_rule_for_an_aten_op_is_in_the_index() -> None:
    indexed = {op.name for op in index() if op.how == "rule"}
    functional = {str(t) for t in registry.registered() if str(t).startswith("aten.") and not t._schema.is_mutable}
    assert functional - indexed == set()


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "aten.CUMSUM"]) == 0
    assert "aten.cumsum.default" in capsys.readouterr().out
    assert main(["ops", "no_such_op"]) == 0
    assert capsys.readouterr().out.strip() == "0 ops"
    assert main(["ops", "cumsum", "--json"]) == 0
    assert {"name", "how", "where"} == set(json.loads(capsys.readouterr().out)[0])
