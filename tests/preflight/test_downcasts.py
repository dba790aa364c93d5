"""--implicit-integer-downcast: what the compiler narrows where it may, and refuses where it may not."""

from __future__ import annotations

import warnings

import pytest
import torch

import neuron_dynamo
from neuron_dynamo.compilers.neuronx.arguments import arguments
from neuron_dynamo.errors import PreflightError
from neuron_dynamo.lowering.program import Program, Signature
from neuron_dynamo.options import Options
from neuron_dynamo.preflight import check
from neuron_dynamo.preflight.downcasts import ALL, allowed
from neuron_dynamo.preflight.refusal import refuse
from neuron_dynamo.target import get_target
from tests.preflight.programs import main
from tests.preflight.test_limits import all_reduce
from tests.preflight.test_rules import combining

TRN2 = get_target("trn2")
RANKS = "dense<[[0, 1]]> : tensor<1x2xi64>"
SCATTERED = all_reduce(RANKS, "i32").replace("all_reduce", "reduce_scatter").replace("{replica", "{scatter_dimension = 0 : i64, replica")
DOT = ("%x: tensor<2x2xi32>", "%r = stablehlo.dot %x, %x : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>")
NARROWED = {
    "dot": ("NCC_EVRF035", DOT),
    "scatter": ("NCC_EVRF060", combining("add", "i32")),
    "all_reduce": ("NCC_EVRF061", ("%x: tensor<4xi32>", all_reduce(RANKS, "i32"))),
    "pow": ("NCC_EVRF062", ("%x: tensor<2xi64>", "%r = stablehlo.power %x, %x : tensor<2xi64>")),
    "reduce_scatter": ("NCC_EVRF063", ("%x: tensor<4xi32>", SCATTERED.replace("-> tensor<4x", "-> tensor<2x"))),
}


@pytest.mark.parametrize("word", NARROWED)
def test_what_the_flag_does_not_allow_is_refused(word):
    code, program = NARROWED[word]
    text = main(*program)
    for words, refused in ((ALL, False), (frozenset({word}), False), (frozenset(), True), (ALL - {word}, True)):
        assert [(f.code, f.refused) for f in check(text, TRN2, downcasts=words)] == [(code, refused)], words


def test_booleans_are_no_matter_of_the_flag():
    for words in (ALL, frozenset[str]()):
        assert [(f.code, f.refused) for f in check(main(*combining("or", "i1")), TRN2, downcasts=words)] == [("NCC_EVRF016", True)]


def test_the_flag():
    def of(given: str) -> frozenset[str]:
        return allowed(arguments(Options.resolve({"target": "trn2", "compiler_args": given}, environ={}), (2, 27)))

    flag = "--implicit-integer-downcast"
    assert allowed(()) == of("") == of(f"{flag}=all") == of(f"{flag} default") == ALL
    assert of(f"{flag}=none") == frozenset() and of(f"{flag} dot,pow") == {"dot", "pow"}
    assert of(f"{flag}=none {flag}=pow") == {"pow"}


def test_where_preflight_stands_before_a_compiler():
    program = Program(main(*DOT), Signature((), ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [f.refused for f in refuse(program, TRN2)] == [False]
    with pytest.raises(PreflightError, match=r"NCC_EVRF035: .* which --implicit-integer-downcast keeps the compiler from narrowing"):
        refuse(program, TRN2, arguments=("--implicit-integer-downcast", "none"))


@pytest.mark.parametrize("option", ["compiler_args", "neuron_cc_flags"])
def test_check_reads_the_options(option):
    def largest(x, index):
        return x.scatter_reduce(0, index, x, "amax")

    for value, refused in (("", False), ("--implicit-integer-downcast=none", True)):
        given = torch.ones(4, 4, dtype=torch.int64)
        report = neuron_dynamo.check(largest, given, given, options={"target": "trn2", option: value})
        assert [(f.code, f.refused) for f in report.findings] == [("NCC_EVRF060", refused)]
