"""Where findings stand: all of them, with the op, the user's line, and inside of functions and regions."""

from __future__ import annotations

import pytest
import torch

import neuron_dynamo
from neuron_dynamo.errors import SourceLine
from neuron_dynamo.lowering.pipeline import lower
from neuron_dynamo.lowering.program import OpSource
from neuron_dynamo.preflight import check, checker
from neuron_dynamo.target import get_target
from tests.lowering.opcheck import trace
from tests.preflight.programs import artifact, findings, main

TRN2 = get_target("trn2")


def test_all_findings_at_once_in_order():
    found = findings("%x: tensor<4x4xf64>", "%a = stablehlo.cholesky %x, lower = true : tensor<4x4xf64>")
    assert [f.code for f in found] == ["NCC_ESPP004", "NCC_ESPP004", "NCC_EVRF001", "NCC_ESPP004"]
    assert found[2].op == "stablehlo.cholesky(f64[4,4])"


def test_the_users_line():
    program = main("%x: tensor<4x4xf32>", "%a = stablehlo.cholesky %x, lower = true : tensor<4x4xf32>")
    line = SourceLine("model.py", 7, "block.norm")
    (found,) = check(program, TRN2, [OpSource(0, "stablehlo.cholesky", "n", "aten.cholesky.default", line)])
    assert (found.source, found.fx_op) == (line, "aten.cholesky.default")
    assert "at model.py:7 in module block.norm" in str(found) and "what to do:" in str(found)


SHARED = """
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4x4xf32>
  %1 = call @outer(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = call @inner(%1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}
func.func private @outer(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = call @inner(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
func.func private @inner(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = stablehlo.cholesky %x, lower = true : tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}"""


def test_called_functions_are_reported_at_every_call():
    lines = [SourceLine("model.py", 9), SourceLine("model.py", 10)]
    found = check(artifact(SHARED), TRN2, [OpSource(1, "func.call", "n", "op", lines[0]), OpSource(2, "func.call", "m", "op", lines[1])])
    assert [(f.code, f.source) for f in found] == [("NCC_EVRF001", line) for line in lines]


def test_a_shared_function_is_judged_once(monkeypatch):
    judged = []
    monkeypatch.setattr(checker, "rules_for", lambda name: judged.append(name) or [])
    check(artifact(SHARED), TRN2)
    assert judged.count("stablehlo.cholesky") == 1


@pytest.mark.parametrize(("rows", "found"), [(9, ["NCC_EVRF056"]), (10, [])])
@pytest.mark.parametrize("fusions", ["off", "on"])
def test_what_a_composite_is_given_counts(fusions, rows, found):
    def embed(w):
        return torch.nn.functional.embedding(torch.arange(10).unsqueeze(0).expand(2, 10), w)

    report = neuron_dynamo.check(embed, torch.ones(rows, 8), options={"target": "trn2", "fusions": fusions})
    assert [f.code for f in report.findings] == found


def test_a_constant_at_the_call_is_one_in_the_function():
    text = """
func.func @main(%x: tensor<4xf32>) -> tensor<f32> {{
  %z = {} : tensor<f32>
  %1 = call @sum(%x, %z) : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}}
func.func private @sum(%x: tensor<4xf32>, %z: tensor<f32>) -> tensor<f32> {{
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}}"""
    assert check(artifact(text.format("stablehlo.constant dense<0.0>")), TRN2) == []
    computed = text.format("stablehlo.constant dense<0.0> : tensor<f32>\n  %n = stablehlo.negate %z").replace(
        "@sum(%x, %z) : (", "@sum(%x, %n) : ("
    )
    assert [f.code for f in check(artifact(computed), TRN2)] == ["NCC_EVRF001"]


def test_ops_of_regions_are_judged():
    text = """%w = stablehlo.while(%i = %x) : tensor<1x1xf32> cond {
  %c = stablehlo.constant dense<false> : tensor<i1>
  stablehlo.return %c : tensor<i1>
} do {
  %d = stablehlo.cholesky %i, lower = true : tensor<1x1xf32>
  stablehlo.return %d : tensor<1x1xf32>
}"""
    assert [f.op.partition("(")[0] for f in findings("%x: tensor<1x1xf32>", text)] == ["stablehlo.while", "stablehlo.cholesky"]


def test_of_a_program_from_lowering():
    gm = trace(lambda x: (torch.fft.fft(x).real,), [torch.ones(4, dtype=torch.float64)])
    program = lower(gm.graph, get_target("host"))
    codes = {f.code for f in check(program.stablehlo, TRN2, program.sources)}
    assert codes == {"NCC_ESPP004", "NCC_EVRF004", "NCC_EVRF001"}
    assert check(program.stablehlo, get_target("host"), program.sources) == []
