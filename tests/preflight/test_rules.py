"""One test a rule, with a form that it finds and a form that passes."""

from __future__ import annotations

import pytest

from tests.preflight.programs import codes, findings, warned


def unary(name: str, kind: str, result: str = "") -> tuple[str, str]:
    return f"%x: {kind}", f"%r = stablehlo.{name} %x : ({kind}) -> {result or kind}"


@pytest.mark.parametrize(
    ("element", "code"),
    [
        ("f64", "NCC_ESPP004"),
        ("complex<f64>", "NCC_EVRF004"),
        ("f8E5M2FNUZ", "NCC_EVRF005"),
        ("f8E4M3FN", "NCC_EVRF051"),
        ("f8E8M0FNU", "NCC_ESPP047"),
        ("f4E2M1FN", "NCC_ESPP004"),
    ],
)
def test_element_types(element, code):
    assert set(codes(f"%x: tensor<3x{element}>", "")) == {code}


@pytest.mark.parametrize("element", ["f32", "bf16", "f16", "i64", "i32", "i8", "ui8", "ui64", "i1", "f8E5M2", "f8E4M3"])
def test_element_types_that_all_targets_have(element):
    for target in ("trn1", "inf2", "trn2", "trn3"):
        assert codes(f"%x: tensor<3x{element}>", "", target) == []


def test_complex64_is_a_matter_of_the_release():
    text = "%r = stablehlo.add %x, %x : tensor<3xcomplex<f32>>"
    assert set(warned("%x: tensor<3xcomplex<f32>>", text)) == {"NCC_EVRF004"} and codes("%x: tensor<3xcomplex<f32>>", text) == []


def test_of_scales_nothing_is_published_for_trn3():
    assert set(warned("%x: tensor<3xf8E8M0FNU>", "", "trn3")) == {""} and codes("%x: tensor<3xf8E8M0FNU>", "", "trn3") == []


def test_trn3_has_the_ocp_float8():
    assert codes("%x: tensor<3xf8E4M3FN>", "", "trn3") == []


def test_the_host_refuses_nothing():
    assert codes("%x: tensor<3xf64>", "", "host") == []


def test_dynamic_shapes():
    assert set(codes("%x: tensor<?xf32>", "")) == {"NCC_EMOD025"}


SORT = """
%s = "stablehlo.sort"(%x) ({
^bb0(%l: tensor<f32>, %r: tensor<f32>):
  %c = stablehlo.compare LT, %l, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}) {dimension = 0 : i64, is_stable = true} : (tensor<4xf32>) -> tensor<4xf32>"""


def test_sort():
    assert codes("%x: tensor<4xf32>", SORT, "trn2") == codes("%x: tensor<4xf32>", SORT, "trn3") == ["NCC_EVRF029"]
    assert codes("%x: tensor<4xf32>", SORT, "trn1") == codes("%x: tensor<4xf32>", SORT, "inf2") == []


@pytest.mark.parametrize(
    "op",
    [
        "%r = stablehlo.cholesky %x, lower = true : tensor<4x4xf32>",
        """%r = "stablehlo.triangular_solve"(%x, %x) {left_side = true, lower = true, unit_diagonal = false,
        transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>""",
    ],
)
def test_linear_algebra(op):
    assert codes("%x: tensor<4x4xf32>", op) == ["NCC_EVRF001"]
    assert codes("%x: tensor<4x4xf32>", "%r = stablehlo.dot %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>") == []


def test_fft():
    text = "%r = stablehlo.fft %x, type = RFFT, length = [4] : (tensor<4xf32>) -> tensor<3xcomplex<f32>>"
    assert codes("%x: tensor<4xf32>", text) == ["NCC_EVRF001"] and warned("%x: tensor<4xf32>", text) == ["NCC_EVRF004"]


WHILE = """
%w = stablehlo.while(%i = %x) : tensor<i32> cond {
  %c = stablehlo.compare LT, %i, %x : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
} do {
  stablehlo.return %i : tensor<i32>
}"""
IF = """
%p = stablehlo.constant dense<true> : tensor<i1>
%r = "stablehlo.if"(%p) ({ stablehlo.return %x : tensor<f32> }, { stablehlo.return %x : tensor<f32> }) : (tensor<i1>) -> tensor<f32>"""
CASE = """
%p = stablehlo.constant dense<0> : tensor<i32>
%r = "stablehlo.case"(%p) ({ stablehlo.return %x : tensor<f32> }) : (tensor<i32>) -> tensor<f32>"""


def test_control_flow():
    assert codes("%x: tensor<i32>", WHILE) == ["NCC_EVRF001"]
    assert codes("%x: tensor<f32>", IF) == codes("%x: tensor<f32>", CASE) == ["NCC_EVRF001"]
    text = "%p = stablehlo.constant dense<true> : tensor<i1>\n%r = stablehlo.select %p, %x, %x : tensor<i1>, tensor<f32>"
    assert codes("%x: tensor<f32>", text) == []


def test_custom_calls():
    call = "%r = stablehlo.custom_call @{}(%x) : (tensor<4xf32>) -> tensor<4xf32>"
    assert codes("%x: tensor<4xf32>", call.format("mhlo.erf")) == ["NCC_EVRF015"]
    assert codes("%x: tensor<4xf32>", call.format("AwsNeuronErf")) == []


def test_top_k_of_integers():
    call = '%r:2 = stablehlo.custom_call @AwsNeuronTopK(%x) {{backend_config = "2"}} : (tensor<4x{0}>) -> (tensor<2x{0}>, tensor<2xi32>)'
    assert codes("%x: tensor<4xi32>", call.format("i32")) == ["NCC_EVRF013"]
    assert codes("%x: tensor<4xf32>", call.format("f32")) == []


def test_random_algorithm():
    text = "%s, %r = stablehlo.rng_bit_generator %x, algorithm = {} : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)"
    assert codes("%x: tensor<2xui64>", text.format("THREE_FRY")) == ["NCC_EVRF006"]
    assert codes("%x: tensor<2xui64>", text.format("DEFAULT")) == []


def reduce(body: str, element: str = "f32", init: str = "%z = stablehlo.constant dense<0.0> : tensor<f32>") -> str:
    return f"""{init}
%r = "stablehlo.reduce"(%x, %z) ({{
^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
  {body}
  stablehlo.return %c : tensor<{element}>
}}) {{dimensions = array<i64: 0>}} : (tensor<4x{element}>, tensor<{element}>) -> tensor<{element}>"""


def test_reduce_bodies():
    for name in ("add", "multiply", "minimum", "maximum"):
        assert codes("%x: tensor<4xf32>", reduce(f"%c = stablehlo.{name} %a, %b : tensor<f32>")) == []
    logical = reduce("%c = stablehlo.or %a, %b : tensor<i1>", "i1", "%z = stablehlo.constant dense<false> : tensor<i1>")
    assert codes("%x: tensor<4xi1>", logical) == ["NCC_EVRF001"]
    assert "reduction by or" in findings("%x: tensor<4xi1>", logical)[0].what
    assert codes("%x: tensor<4xf32>", reduce("%d = stablehlo.negate %a : tensor<f32>\n%c = stablehlo.add %d, %b : tensor<f32>")) == [
        "NCC_EVRF001"
    ]


def test_reduce_init_must_be_constant():
    add = "%c = stablehlo.add %a, %b : tensor<f32>"
    assert codes("%x: tensor<4xf32>,%z: tensor<f32>", reduce(add, init="")) == ["NCC_EVRF001"]


def test_reduce_of_several_tensors():
    text = """%z = stablehlo.constant dense<0.0> : tensor<f32>
%r:2 = "stablehlo.reduce"(%x, %x, %z, %z) ({
^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
  stablehlo.return %a, %b : tensor<f32>, tensor<f32>
}) {dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)"""
    assert codes("%x: tensor<4xf32>", text) == ["NCC_EVRF001"]


def window(attributes: str, sizes: str, name: str = "maximum") -> str:
    return f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
%r = "stablehlo.reduce_window"(%x, %z) ({{
^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %c = stablehlo.{name} %a, %b : tensor<f32>
  stablehlo.return %c : tensor<f32>
}}) {{window_dimensions = array<i64: 2>{attributes}}} : (tensor<8xf32>, tensor<f32>) -> tensor<{sizes}xf32>"""


def test_reduce_window():
    x = "%x: tensor<8xf32>"
    assert codes(x, window("", "7")) == codes(x, window(", window_strides = array<i64: 2>", "4")) == []
    assert codes(x, window(", base_dilations = array<i64: 2>", "14")) == ["NCC_EVRF017"]
    assert codes(x, window(", window_dilations = array<i64: 2>", "6")) == ["NCC_EVRF018"]
    assert codes(x, window("", "7", "power")) == ["NCC_EVRF001"]


def test_reduce_window_of_several_tensors():
    text = """%z = stablehlo.constant dense<0.0> : tensor<f32>
%r:2 = "stablehlo.reduce_window"(%x, %x, %z, %z) ({
^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
  stablehlo.return %a, %b : tensor<f32>, tensor<f32>
}) {window_dimensions = array<i64: 2>} : (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>) -> (tensor<7xf32>, tensor<7xf32>)"""
    assert codes("%x: tensor<8xf32>", text) == ["NCC_EVRF019"]


def convolve(window: str, sizes: str, element: str = "f32") -> str:
    kinds = f"(tensor<1x1x9x{element}>, tensor<1x1x3x{element}>) -> tensor<1x1x{sizes}x{element}>"
    return (
        "%r = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], "
        f"window = {{{window}}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : {kinds}"
    )


def test_convolution():
    given = "%x: tensor<1x1x9xf32>,%w: tensor<1x1x3xf32>"
    assert codes(given, convolve("stride = [2]", "4")) == codes(given, convolve("rhs_dilate = [2], stride = [2]", "3")) == []
    assert codes(given, convolve("lhs_dilate = [2]", "15")) == []
    assert codes(given, convolve("lhs_dilate = [2], rhs_dilate = [2]", "13")) == ["NCC_EVRF010"]
    assert codes(given, convolve("lhs_dilate = [2], stride = [2]", "8")) == ["NCC_EVRF011"]


def test_unsigned_constants():
    text = "%r = stablehlo.constant dense<{}> : tensor<2xui64>"
    assert codes("%x: tensor<f32>", text.format("[1, 4294967296]")) == ["NCC_ESFH002"]
    assert codes("%x: tensor<f32>", text.format("[1, 4294967295]")) == []


def test_signed_constants_where_integers_have_32_bits():
    text = "%r = stablehlo.constant dense<{}> : tensor<i64>"
    assert warned("%x: tensor<f32>", text.format(-(2**31) - 1), "trn1") == [""]
    assert warned("%x: tensor<f32>", text.format(-(2**31)), "trn1") == []
    assert warned("%x: tensor<f32>", text.format(2**40), "trn2") == []


def test_bits_of_wide_integers():
    given = unary("bitcast_convert", "tensor<3xi64>", "tensor<3x2xui32>")
    assert warned(*given, "inf2") == [""] and warned(*given, "trn2") == []
    assert warned(*unary("bitcast_convert", "tensor<3xi32>", "tensor<3xf32>"), "inf2") == []


def test_arithmetic_shift():
    for element, found in (("i64", ["NCC_EVRF022"]), ("i8", ["NCC_EVRF022"]), ("i16", ["NCC_EVRF022"]), ("i32", [])):
        assert codes(f"%x: tensor<3x{element}>", f"%r = stablehlo.shift_right_arithmetic %x, %x : tensor<3x{element}>") == found
    assert codes("%x: tensor<3xi64>", "%r = stablehlo.shift_right_logical %x, %x : tensor<3xi64>") == []


def test_integer_products_lose_digits():
    text = "%r = stablehlo.dot %x, %x : (tensor<2x2x{0}>, tensor<2x2x{0}>) -> tensor<2x2x{0}>"
    assert warned("%x: tensor<2x2xi32>", text.format("i32")) == ["NCC_EVRF035"]
    assert codes("%x: tensor<2x2xi32>", text.format("i32")) == []
    assert warned("%x: tensor<2x2xf32>", text.format("f32")) == []
    integers = convolve("", "7", "i32")
    assert warned("%x: tensor<1x1x9xi32>,%w: tensor<1x1x3xi32>", integers) == ["NCC_EVRF035"]


def scatter(element: str, body: str, indices: str = "%i") -> tuple[str, str]:
    text = f"""%n = stablehlo.iota dim = 0 : tensor<4x1xi32>
%r = "stablehlo.scatter"(%x, {indices}, %u) ({{
^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
  {body}
}}) {{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
: (tensor<3x{element}>, tensor<4x1xi32>, tensor<4x{element}>) -> tensor<3x{element}>"""
    return f"%x: tensor<3x{element}>,%i: tensor<4x1xi32>,%u: tensor<4x{element}>", text


def combining(name: str, element: str) -> tuple[str, str]:
    return scatter(element, f"%c = stablehlo.{name} %a, %b : tensor<{element}>\nstablehlo.return %c : tensor<{element}>")


def test_scatters_that_combine():
    assert codes(*combining("or", "i1")) == ["NCC_EVRF016"]
    assert warned(*combining("add", "i64")) == ["NCC_EVRF060"] and codes(*combining("add", "i64")) == []
    assert findings(*combining("add", "f32")) == []
    assert findings(*scatter("i1", "stablehlo.return %b : tensor<i1>")) == []


def test_integer_power():
    assert warned("%x: tensor<2xi64>", "%r = stablehlo.power %x, %x : tensor<2xi64>") == ["NCC_EVRF062"]
    assert warned("%x: tensor<2xi32>", "%r = stablehlo.power %x, %x : tensor<2xi32>") == []
