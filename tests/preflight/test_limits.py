"""Limits on whole programs, on collectives and on custom calls: each with a form that is found and one that passes."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import neuron_dynamo
from neuron_dynamo.lowering.reading import Type, functions
from neuron_dynamo.preflight import check
from neuron_dynamo.preflight.checker import WHOLE_PROGRAM
from neuron_dynamo.preflight.estimates import peak_of, size_of, totals
from neuron_dynamo.target import get_target
from tests.preflight.programs import artifact, codes, findings, main, warned

GIB = 2**30


def test_memory_of_the_targets():
    assert [get_target(*t).memory for t in (("trn1",), ("inf2",), ("trn2",), ("trn2", 1), ("trn3",), ("host",))] == [
        *(17179869184, 17179869184, 25769803776, 12884901888),
        *(None, None),
    ]


@pytest.mark.parametrize(("element", "size"), [("f32", 24), ("bf16", 12), ("i1", 6), ("complex<f32>", 48), ("f8E4M3FN", 6), ("ui64", 48)])
def test_size_of_a_type(element, size):
    assert size_of(Type((2, 3), element)) == size and size_of(Type((), element)) == size // 6
    assert size_of(Type((), "!stablehlo.token")) == 0


def test_inputs_and_outputs_that_no_core_holds():
    def of(gib: int, target: str = "trn2") -> list[str]:
        return [f.code for f in findings(f"%x: tensor<{gib * GIB // 4}xf32>", "", target) if f.op == WHOLE_PROGRAM]

    assert of(13) == ["NCC_EOOM001"] and of(11) == []  # the input, and the output that is its copy
    assert of(9, "trn1") == ["NCC_EOOM001"] and of(7, "trn1") == []
    assert of(100, "trn3") == []


def test_an_output_that_takes_its_inputs_memory_counts_once():
    program = main(f"%x: tensor<{13 * GIB // 4}xf32>", "")
    assert check(program, get_target("trn2"), aliases=[(0, 0)]) == []
    (found,) = check(program, get_target("trn2"))
    assert found.refused and "26.0 GiB of inputs and outputs; a logical core of trn2 (lnc 2) has 24" in found.what
    (found,) = check(program, get_target("trn2", 1), aliases=[(0, 0)])
    assert "(lnc 1) has 12" in found.what


STEPS = """%0 = stablehlo.negate %x : tensor<4xf32>
%1 = stablehlo.negate %0 : tensor<4xf32>
%2 = stablehlo.add %0, %1 : tensor<4xf32>
%3 = stablehlo.negate %2 : tensor<4xf32>"""


def test_what_lives_at_once():
    assert peak_of(functions(main("%x: tensor<4xf32>", STEPS))) == 3 * 16


def layers(call: str, size: int = 4) -> str:
    """@main with %0, three calls and a use of %0 behind them; @layer holds two intermediate results besides its own."""
    kind = f"tensor<{size}xf32>"
    calls = "\n".join(f"  %{n + 1} = {call.format(n)} : ({kind}) -> {kind}" for n in range(3))
    return f"""
func.func @main(%x: {kind}) -> {kind} {{
  %0 = stablehlo.negate %x : {kind}
{calls}
  %4 = stablehlo.add %0, %3 : {kind}
  return %4 : {kind}
}}
func.func private @layer(%x: {kind}) -> {kind} {{
  %0 = stablehlo.negate %x : {kind}
  %1 = stablehlo.negate %x : {kind}
  %2 = stablehlo.add %0, %1 : {kind}
  return %2 : {kind}
}}"""


CALLS = ["call @layer(%{0})", 'stablehlo.composite "a.b" %{0} {{decomposition = @layer}}']


@pytest.mark.parametrize("call", CALLS)
def test_what_lives_at_once_in_a_call_lives_beside_the_callers(call):
    assert peak_of(functions(artifact(layers(call)))) == (2 + 3) * 16


@pytest.mark.parametrize("call", CALLS)
def test_a_function_counts_at_every_call(call):
    assert totals(functions(artifact(layers(call, 65536)))).instructions == 2 + 3 * 3
    text = layers(call).replace("%0 = stablehlo.negate %x", "%0 = stablehlo.constant dense<1.0>")
    assert totals(functions(artifact(text))).constants == (1 + 3) * 16


@pytest.mark.parametrize("fusions", ["off", "on"])
def test_fusions_hide_nothing_from_the_estimates(fusions):
    def attend(q):
        for _ in range(8):
            q = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return q

    with FakeTensorMode():
        q = torch.empty(1, 32, 16384, 128)
        report = neuron_dynamo.check(attend, q, options={"target": "trn2", "fusions": fusions})
    assert {f.code for f in report.findings} == {"NCC_EOOM001", "NCC_EBVF030"}


def test_intermediate_results_are_an_estimate():
    big = STEPS.replace("4x", f"{2 * GIB}x")
    found = [f for f in findings(f"%x: tensor<{2 * GIB}xf32>", big) if f.op == WHOLE_PROGRAM]
    assert [(f.code, f.refused) for f in found] == [("NCC_EOOM001", False)]
    assert "about 40.0 GiB at once, 16.0 of them inputs and outputs" in found[0].what
    assert [f for f in findings(f"%x: tensor<{GIB // 2}xf32>", STEPS.replace("4x", f"{GIB // 2}x")) if f.op == WHOLE_PROGRAM] == []


def test_instructions():
    def of(arguments: str, body: str) -> int:
        return totals(functions(main(arguments, body))).instructions

    assert of("%x: tensor<128x512xf32>", "%0 = stablehlo.negate %x : tensor<128x512xf32>") == 1
    assert of("%x: tensor<129x512xf32>", "%0 = stablehlo.negate %x : tensor<129x512xf32>") == 2
    kinds = "(tensor<512x256xf32>, tensor<256x1024xf32>) -> tensor<512x1024xf32>"
    assert of("%x: tensor<512x256xf32>,%w: tensor<256x1024xf32>", f"%0 = stablehlo.dot %x, %w : {kinds}") == 8 * 2
    assert of("%x: tensor<512x256xf32>", "%0 = stablehlo.reshape %x : (tensor<512x256xf32>) -> tensor<256x512xf32>") == 0


def test_too_many_instructions():
    def of(rows: int) -> list[str]:
        arguments = f"%x: tensor<{rows}x65536xbf16>,%w: tensor<65536x65536xbf16>"
        kinds = f"(tensor<{rows}x65536xbf16>, tensor<65536x65536xbf16>) -> tensor<{rows}x65536xbf16>"
        found = findings(arguments, f"%0 = stablehlo.dot %x, %w : {kinds}")
        return [f.code for f in found if f.code == "NCC_EBVF030"]

    assert of(32768) == ["NCC_EBVF030"] and of(4096) == []


def test_constants_that_no_proto_holds():
    def of(elements: int) -> list[str]:
        return [f.what for f in findings("%x: tensor<f32>", f"%0 = stablehlo.constant dense<1.0> : tensor<{elements}xf32>") if f.refused]

    assert of(GIB // 2) == ["2.0 GiB of constants, of which an HLO proto holds 2"] and of(GIB // 2 - 1) == []


def all_reduce(groups: str, element: str = "f32", name: str = "%r") -> str:
    return f"""{name} = "stablehlo.all_reduce"(%x) ({{
^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
  %c = stablehlo.add %a, %b : tensor<{element}>
  stablehlo.return %c : tensor<{element}>
}}) {{replica_groups = {groups}}} : (tensor<4x{element}>) -> tensor<4x{element}>"""


def test_collectives_list_their_ranks():
    assert codes("%x: tensor<4xf32>", all_reduce("dense<> : tensor<0x0xi64>")) == [""]
    assert codes("%x: tensor<4xf32>", all_reduce("dense<[[0, 1]]> : tensor<1x2xi64>")) == []


def test_collectives_over_integers_lose_digits():
    groups = "dense<[[0, 1]]> : tensor<1x2xi64>"
    assert warned("%x: tensor<4xi32>", all_reduce(groups, "i32")) == ["NCC_EVRF061"]
    assert warned("%x: tensor<4xf32>", all_reduce(groups)) == []
    scatter = all_reduce(groups, "i32").replace("all_reduce", "reduce_scatter").replace("{replica", "{scatter_dimension = 0 : i64, replica")
    assert warned("%x: tensor<4xi32>", scatter.replace("-> tensor<4x", "-> tensor<2x")) == ["NCC_EVRF063"]


def test_reductions_across_ranks_by_what_is_known():
    text = all_reduce("dense<[[0, 1]]> : tensor<1x2xi64>")
    for name in ("add", "minimum", "maximum"):
        assert findings("%x: tensor<4xf32>", text.replace("stablehlo.add", f"stablehlo.{name}")) == []
    (found,) = findings("%x: tensor<4xf32>", text.replace("stablehlo.add", "stablehlo.multiply"))
    assert not found.refused and "by multiply; only add, maximum, minimum" in found.what


def test_groupings_of_one_neff():
    order = [list(ranks) for ranks in itertools.permutations(range(4))]

    def of(count: int) -> list[str]:
        text = "\n".join(all_reduce(f"dense<{[order[n]]}> : tensor<1x4xi64>", name=f"%r{n}") for n in range(count))
        return [f.what for f in findings("%x: tensor<4xf32>", text) if f.refused]

    assert of(17) == ["collectives over 17 different groupings of ranks; a NEFF may have 16"] and of(16) == []


def top_k(row: int, k: str) -> tuple[str, str]:
    kinds = f"(tensor<4x{row}xf32>) -> (tensor<4x2xf32>, tensor<4x2xi32>)"
    return f"%x: tensor<4x{row}xf32>", f'%r:2 = stablehlo.custom_call @AwsNeuronTopK(%x) {{backend_config = "{k}"}} : {kinds}'


def test_top_k_limits():
    assert codes(*top_k(8, "9")) == codes(*top_k(8, "")) == codes(*top_k(8, "0")) == [""]
    assert codes(*top_k(8, "8")) == []
    assert warned(*top_k(32768, "16")) == ["NCC_ISGV902"]
    assert warned(*top_k(32768, "15")) == warned(*top_k(32767, "16")) == []


def along(target: str, config: str, operands: str = "%x", given: str = "%x: tensor<4x8xf32>,%w: tensor<8xf32>") -> tuple[str, str]:
    kinds = ", ".join({"%x": "tensor<4x8xf32>", "%w": "tensor<8xf32>", "%e": "tensor<f32>"}[name] for name in operands.split(", "))
    epsilon = "%e = stablehlo.constant dense<1.0e-5> : tensor<f32>\n" if "%e:" not in given else ""
    call = f'stablehlo.custom_call @{target}({operands}) {{backend_config = "{config}"}}'
    return given, f"{epsilon}%r = {call} : ({kinds}) -> tensor<4x8xf32>"


def test_custom_calls_along_a_dim():
    assert codes(*along("AwsNeuronSoftmax", "1")) == codes(*along("AwsNeuronSoftmaxBackward", "0", "%x, %x")) == []
    assert (
        codes(*along("AwsNeuronSoftmax", "-1")) == codes(*along("AwsNeuronSoftmax", "2")) == codes(*along("AwsNeuronSoftmax", "")) == [""]
    )
    assert codes(*along("AwsNeuronSoftmax", "1", "%x, %x")) == codes(*along("AwsNeuronSoftmaxBackward", "1")) == [""]


def test_rms_norm():
    assert codes(*along("AwsNeuronRmsNorm", "1", "%x, %w, %e")) == []
    assert codes(*along("AwsNeuronRmsNorm", "1", "%x, %w")) == codes(*along("AwsNeuronRmsNorm", "1", "%x, %w, %w")) == [""]
    computed = "%x: tensor<4x8xf32>,%w: tensor<8xf32>,%e: tensor<f32>"
    assert codes(*along("AwsNeuronRmsNorm", "1", "%x, %w, %e", computed)) == [""]


def quantize(element: str, shape: str, config: str) -> tuple[str, str]:
    kinds = f"(tensor<{shape}x{element}>) -> (tensor<4x2xui32>, tensor<4x1xui8>)"
    text = config.replace('"', '\\"')
    return f"%x: tensor<{shape}x{element}>", f'%r:2 = stablehlo.custom_call @QuantizeMX(%x) {{backend_config = "{text}"}} : {kinds}'


def test_quantize():
    good = json.dumps({"dtype": "float8_e5m2", "dim": 1})
    assert codes(*quantize("bf16", "4x8", good)) == codes(*quantize("f16", "8x4", '{"dtype": "float8_e4m3fn"}')) == []
    faults = {
        "without its type": quantize("bf16", "4x8", "{}"),
        "other than one bf16 or f16 tensor": quantize("f32", "4x8", good),
        "other blocks": quantize("bf16", "4x8", json.dumps({"dtype": "float8_e5m2", "block_size": 16})),
        "along dim 0 of 3": quantize("bf16", "4x8x8", '{"dtype": "float8_e5m2"}'),
        "of 6 elements, which are packed by 4": quantize("bf16", "4x6", good),
    }
    for says, program in faults.items():
        assert [f.refused and says in f.what for f in findings(*program)] == [True], says


def scaled(left: str, result: str, config: str = "") -> tuple[str, str]:
    kinds = f"(tensor<{left}>, tensor<4x2xui32>, tensor<4x1xui8>, tensor<4x1xui8>) -> tensor<{result}>"
    arguments = f"%x: tensor<{left}>,%w: tensor<4x2xui32>,%s: tensor<4x1xui8>"
    return arguments, f'%r = stablehlo.custom_call @"__op$block_scaled_dot"(%x, %w, %s, %s) {{backend_config = "{config}"}} : {kinds}'


def test_scaled_dot():
    assert codes(*scaled("4x2xui32", "4x4xf32")) == codes(*scaled("4x2xui32", "4x4xbf16", "{}")) == []
    for says, program in {
        "other than packed uint32": scaled("4x2xi32", "4x4xf32"),
        "fewer than two dims": scaled("2xui32", "4x4xf32"),
        "to f16": scaled("4x2xui32", "4x4xf16"),
        "is no JSON": scaled("4x2xui32", "4x4xf32", "x"),
    }.items():
        assert [f.refused and says in f.what for f in findings(*program)] == [True], says
    arguments, text = scaled("4x2xui32", "4x4xf32")
    short = text.replace("(%x, %w, %s, %s)", "(%x, %w)").replace(", tensor<4x1xui8>, tensor<4x1xui8>", "")
    assert ["of 2 tensors" in f.what for f in findings(arguments, short)] == [True]


def test_the_file_of_a_kernel(tmp_path: Path):
    def of(binary: object) -> list[str]:
        config = base64.b64encode(json.dumps({"func_name": "k", "klir_binary": {"binary": binary}}).encode()).decode()
        call = f'stablehlo.custom_call @AwsNeuronCustomNativeKernel(%x) {{backend_config = "{config}"}}'
        return codes("%x: tensor<4xf32>", f"%r = {call} : (tensor<4xf32>) -> tensor<4xf32>")

    (tmp_path / "kernel.bin").write_bytes(b"")
    assert of(str(tmp_path / "kernel.bin")) == of(None) == []
    assert of(str(tmp_path / "gone.bin")) == ["NCC_EVRF059"]
