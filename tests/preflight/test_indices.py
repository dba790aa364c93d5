"""Indices that count beyond the dims that they index, in the forms that programs have them, and starts that are constants."""

from __future__ import annotations

import pytest

from tests.preflight.programs import codes, findings

BROADCAST = """%n = stablehlo.iota dim = 0 : tensor<4xi32>
%i = stablehlo.broadcast_in_dim %n, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>"""
RESHAPED = """%n = stablehlo.iota dim = 0 : tensor<4xi64>
%m = stablehlo.convert %n : (tensor<4xi64>) -> tensor<4xi32>
%i = stablehlo.reshape %m : (tensor<4xi32>) -> tensor<4x1xi32>"""
TRANSPOSED = """%n = stablehlo.iota dim = 1 : tensor<1x4xi32>
%i = stablehlo.transpose %n, dims = [1, 0] : (tensor<1x4xi32>) -> tensor<4x1xi32>"""
WRAPPED = """%n = stablehlo.iota dim = 0 : tensor<4x1xi32>
%z = stablehlo.constant dense<0> : tensor<4x1xi32>
%c = stablehlo.compare LT, %n, %z : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x1xi1>
%i = stablehlo.select %c, %z, %n : tensor<4x1xi1>, tensor<4x1xi32>"""
FORMS = ["%i = stablehlo.iota dim = 0 : tensor<4x1xi32>", BROADCAST, RESHAPED, TRANSPOSED, WRAPPED]


def gather(rows: int, indices: str, kind: str = "4x1", vector: int = 1) -> tuple[str, str]:
    """Whole rows of an operand of `rows` rows and 8 columns."""
    x = f"tensor<{rows}x8xf32>"
    numbers = f"offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {vector}"
    return (
        f"%x: {x}",
        f"""{indices}
%r = "stablehlo.gather"(%x, %i) {{dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: 1, 8>}}
: ({x}, tensor<{kind}xi32>) -> tensor<4x8xf32>""",
    )


def scatter(rows: int, indices: str, kind: str = "4x1", vector: int = 1) -> tuple[str, str]:
    x = f"tensor<{rows}x8xf32>"
    numbers = f"update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = {vector}"
    return (
        f"%x: {x},%u: tensor<4x8xf32>",
        f"""{indices}
%r = "stablehlo.scatter"(%x, %i, %u) ({{
^bb0(%a: tensor<f32>, %b: tensor<f32>):
  stablehlo.return %b : tensor<f32>
}}) {{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}} : ({x}, tensor<{kind}xi32>, tensor<4x8xf32>) -> {x}""",
    )


@pytest.mark.parametrize("indices", FORMS)
def test_counting_is_held_against_the_dim_that_is_indexed(indices):
    assert codes(*scatter(3, indices)) == ["NCC_EVRF031"] and codes(*scatter(4, indices)) == []
    assert codes(*gather(3, indices)) == ["NCC_EVRF056"] and codes(*gather(4, indices)) == []


@pytest.mark.parametrize("form", [scatter, gather])
def test_an_index_vector_dim_behind_the_last(form):
    flat = "%i = stablehlo.iota dim = 0 : tensor<4xi32>"
    assert len(codes(*form(3, flat, "4"))) == 1 and codes(*form(4, flat, "4")) == []


def pairs(indices: str, vector: int = 1) -> tuple[str, str]:
    """Single elements of a 3x4 operand by 4 pairs of indices."""
    numbers = f"collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = {vector}"
    kind = "4x2" if vector else "2x4"
    return (
        "%x: tensor<3x4xf32>,%k: tensor<4x1xi32>",
        f"""{indices}
%r = "stablehlo.gather"(%x, %i) {{dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: 1, 1>}}
: (tensor<3x4xf32>, tensor<{kind}xi32>) -> tensor<4xf32>""",
    )


def test_each_component_against_its_own_dim():
    joined = """%n = stablehlo.iota dim = 0 : tensor<4x1xi32>
%i = stablehlo.concatenate {}, dim = 1 : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>"""
    assert codes(*pairs(joined.format("%n, %k"))) == ["NCC_EVRF056"] and codes(*pairs(joined.format("%k, %n"))) == []
    across = "%i = stablehlo.iota dim = {} : tensor<{}xi32>"
    assert codes(*pairs(across.format(1, "4x2"))) == [] and codes(*pairs(across.format(0, "4x2"))) == ["NCC_EVRF056"]
    assert codes(*pairs(across.format(0, "2x4"), 0)) == [] and codes(*pairs(across.format(1, "2x4"), 0)) == ["NCC_EVRF056"]


def test_indices_that_are_computed_are_not_judged():
    text = """%n = stablehlo.iota dim = 0 : tensor<4x1xi32>
%i = stablehlo.remainder %n, %n : tensor<4x1xi32>"""
    assert codes(*gather(3, text)) == [] and codes(*scatter(3, text)) == []


def test_constant_starts():
    def of(start: int, op: str) -> list[tuple[str, bool]]:
        found = findings(
            "%x: tensor<5xf32>,%u: tensor<2xf32>", f"%i = stablehlo.constant dense<{start}> : tensor<i32>\n%r = stablehlo.{op}"
        )
        return [(f.code, f.refused) for f in found]

    cut = "dynamic_slice %x, %i, sizes = [2] : (tensor<5xf32>, tensor<i32>) -> tensor<2xf32>"
    put = "dynamic_update_slice %x, %u, %i : (tensor<5xf32>, tensor<2xf32>, tensor<i32>) -> tensor<5xf32>"
    for op in (cut, put):
        assert of(4, op) == of(-1, op) == [("NCC_ESMP002", op == put)] and of(3, op) == of(0, op) == []
    assert findings("%x: tensor<5xf32>,%i: tensor<i32>", f"%r = stablehlo.{cut}") == []
