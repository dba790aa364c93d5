"""Preflight and the double of neuronx-cc, which are written apart, on one program of each rule that both can see, refused and passing."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from torch_mlir import ir

from neuron_dynamo import xla
from neuron_dynamo.lowering.hlo.collectives import explicit_groups
from neuron_dynamo.lowering.importer import new_context
from neuron_dynamo.preflight import check
from neuron_dynamo.preflight.downcasts import allowed
from neuron_dynamo.preflight.published import CUSTOM_CALLS
from neuron_dynamo.target import get_target
from tests.doubles import hlo_refusals, neuronx_cc
from tests.preflight.programs import artifact
from tests.preflight.test_downcasts import NARROWED
from tests.preflight.test_indices import FORMS, WRAPPED, gather, pairs, scatter
from tests.preflight.test_limits import GIB, quantize
from tests.preflight.test_rules import combining

UNNUMBERED = {"EVRF036"}
"""What the double prints where the vendor's numbers are not known to belong to one condition each; preflight has no code there."""


def kernel(path: str) -> tuple[str, str]:
    config = base64.b64encode(json.dumps({"klir_binary": {"binary": path}}).encode()).decode()
    call = f'stablehlo.custom_call @AwsNeuronCustomNativeKernel(%x) {{backend_config = "{config}"}}'
    return "%x: tensor<4xf32>", f"%r = {call} : (tensor<4xf32>) -> tensor<4xf32>"


def call(name: str) -> tuple[str, str]:
    return "%x: tensor<4xf32>", f'%r = stablehlo.custom_call @"{name}"(%x) : (tensor<4xf32>) -> tensor<4xf32>'


def reshaped(element: str, size: int = 3) -> tuple[str, str]:
    return f"%x: tensor<{size}x{element}>", f"%r = stablehlo.reshape %x : (tensor<{size}x{element}>) -> tensor<{size}x1x{element}>"


def put(start: int) -> tuple[str, str]:
    text = "%r = stablehlo.dynamic_update_slice %x, %u, %i : (tensor<5xf32>, tensor<2xf32>, tensor<i32>) -> tensor<5xf32>"
    return "%x: tensor<5xf32>,%u: tensor<2xf32>", f"%i = stablehlo.constant dense<{start}> : tensor<i32>\n{text}"


QUANTIZED = json.dumps({"dtype": "float8_e5m2", "dim": 1})
JOINED = """%n = stablehlo.iota dim = 0 : tensor<4x1xi32>
%i = stablehlo.concatenate {}, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>"""
REFUSED = {
    "booleans": (combining("or", "i1"), "EVRF016"),
    "scale": (reshaped("f8E8M0FNU"), "ESPP047"),
    "complex128": (reshaped("complex<f64>"), "EVRF004"),
    "memory": (reshaped("f32", 13 * GIB // 4), "EOOM001"),
    "kernel": (kernel("/nowhere/kernel.bin"), "EVRF059"),
    "name": (call("AwsNeuronModuleMarkerMiddle"), "EVRF015"),
    "start": (put(4), "ESMP002"),
    "negative": (put(-1), "ESMP002"),
    "pair": (pairs(JOINED.format("%n, %k")), "EVRF056"),
    "type": (quantize("bf16", "4x8", "{}"), "EVRF036"),
    "element": (quantize("f32", "4x8", QUANTIZED), "EVRF036"),
    "block": (quantize("bf16", "4x8", json.dumps({"dtype": "float8_e5m2", "block_size": 16})), "EVRF036"),
    "dim": (quantize("bf16", "4x8x8", '{"dtype": "float8_e5m2"}'), "EVRF036"),
    "packed": (quantize("bf16", "4x6", QUANTIZED), "EVRF036"),
    **{f"scatter{n}": (scatter(3, form), "EVRF031") for n, form in enumerate(FORMS) if form != WRAPPED},
    **{f"gather{n}": (gather(3, form), "EVRF056") for n, form in enumerate(FORMS) if form != WRAPPED},
}
PASSING = {
    "booleans": combining("add", "f32"),
    "complex64": reshaped("complex<f32>"),
    "memory": reshaped("f32", 11 * GIB // 4),
    "kernel": kernel(__file__),
    "start": put(3),
    "pair": pairs(JOINED.format("%k, %n")),
    "quantize": quantize("f16", "4x8", QUANTIZED),
    **{f"scatter{n}": scatter(4, form) for n, form in enumerate(FORMS)},
    **{f"gather{n}": gather(4, form) for n, form in enumerate(FORMS)},
}


def as_the_double_reads(program: bytes) -> Any:
    proto = neuronx_cc.as_neuronx_reads(neuronx_cc.load_schema().parse(xla.hlo_proto(program)))
    for computation in proto.computations:
        for instruction in computation.instructions:
            explicit_groups(instruction)
    return proto


def said(arguments: str, body: str, target: str = "trn2", *flags: str) -> tuple[set[str], set[str]]:
    """Codes that preflight refuses, and those that the double prints, for a program that returns %r."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(f"func.func @main({arguments}) {{\n{body}\nreturn\n}}")
        (function,) = module.body.operations
        kinds = [str(result.type) for result in list(function.regions[0].blocks[0].operations)[-2].results]
    names = ", ".join(f"%r#{n}" for n in range(len(kinds)))
    program = artifact(f"func.func @main({arguments}) -> ({', '.join(kinds)}) {{\n{body}\nreturn {names} : {', '.join(kinds)}\n}}")
    found = check(program, get_target(target), downcasts=allowed(flags))
    given = {"--target": target, **dict(zip(flags[::2], flags[1::2], strict=True))}
    printed = hlo_refusals.refusals(as_the_double_reads(program), given, neuronx_cc.load_schema())
    refused = {finding.code.removeprefix("NCC_") for finding in found if finding.refused}
    return refused, {"" if code in UNNUMBERED else code for code, _, _ in printed}


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(name: str) -> None:
    program, code = REFUSED[name]
    expected = {"" if code in UNNUMBERED else code}
    assert said(*program) == (expected, expected)


@pytest.mark.parametrize("name", PASSING)
def test_both_let_pass(name: str) -> None:
    assert said(*PASSING[name]) == (set(), set())


@pytest.mark.parametrize("word", NARROWED)
def test_integers_by_the_flag(word: str) -> None:
    code, program = NARROWED[word]
    refused = {code.removeprefix("NCC_")}
    flag = "--implicit-integer-downcast"
    others = ",".join(other for other in NARROWED if other != word)
    assert said(*program, "trn2", flag, "none") == said(*program, "trn2", flag, others) == (refused, refused)
    assert said(*program, "trn2") == said(*program, "trn2", flag, word) == said(*program, "trn2", flag, "default") == (set(), set())


@pytest.mark.parametrize("program", [reshaped("f8E8M0FNU"), reshaped("f8E4M3FN")])
def test_trn3_has_more_types(program: tuple[str, str]) -> None:
    assert said(*program, "trn3") == (set(), set()) and all(said(*program))


def test_both_know_the_same_names() -> None:
    assert hlo_refusals.CUSTOM_CALLS == CUSTOM_CALLS
    assert said(*call("AwsNeuronModuleMarkerStart-Forward")) == said(*call("NeuronBoundaryMarker-End")) == (set(), set())


@pytest.mark.parametrize(("release", "codes"), [((2, 26), ["EVRF004"]), ((2, 27), [])])
def test_an_older_double_refuses_complex64(release: tuple[int, int], codes: list[str]) -> None:
    text = "func.func @main(%x: tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>> {\nreturn %x : tensor<3xcomplex<f32>>\n}"
    printed = hlo_refusals.refusals(as_the_double_reads(artifact(text)), {"--target": "trn2"}, neuronx_cc.load_schema(), release)
    assert [code for code, _, _ in printed] == codes
