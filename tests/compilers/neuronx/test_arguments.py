"""The command line: what is pinned for each target and release, and how the user's flags join in."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dynamo.compilers.neuronx.arguments import arguments
from neuron_dynamo.errors import OptionError
from neuron_dynamo.options import Options

NEW, OLD = (2, 27), (2, 26)


def line(release: tuple[int, int] = NEW, environ: dict[str, str] | None = None, **given: Any) -> str:
    return " ".join(arguments(Options.resolve({"target": "trn2", **given}, environ=environ or {}), release))


INTEGERS = "--native-int64 enabled --implicit-integer-downcast all"


@pytest.mark.parametrize(
    ("target", "release", "expected"),
    [
        ("trn2", NEW, f"--framework XLA --target trn2 --lnc 2 -O2 --auto-cast none {INTEGERS}"),
        ("trn3", (3, 0), f"--framework XLA --target trn3 --lnc 2 -O2 --auto-cast none {INTEGERS}"),
        ("trn2", OLD, "--framework XLA --target trn2 --lnc 2 -O2 --auto-cast none"),
        ("trn1", NEW, "--framework XLA --target trn1 -O2 --auto-cast none --implicit-integer-downcast all"),
        ("inf2", OLD, "--framework XLA --target inf2 -O2 --auto-cast none"),
    ],
)
def test_pinned(target, release, expected):
    assert line(release, target=target) == expected


def test_the_logical_core():
    assert "--lnc 1" in line(lnc=1)


@pytest.mark.parametrize("spelling", ["-O1", "-O 1", "-O=1", "--optlevel 1", "--optlevel=1"])
def test_the_users_level_replaces_ours(spelling):
    assert line(OLD, compiler_args=spelling) == "--framework XLA --target trn2 --lnc 2 -O1 --auto-cast none"


def test_later_flags_win():
    environ = {"NEURON_CC_FLAGS": "--model-type=transformer --auto-cast matmult --auto-cast-type=fp16"}
    assert line(OLD, environ) == (
        "--framework XLA --target trn2 --lnc 2 -O2 --auto-cast matmult --model-type transformer --auto-cast-type fp16"
    )
    args = "--model-type generic --enable-mixed-precision-accumulation --disable-mixed-precision-accumulation"
    assert line(OLD, environ, compiler_args=args).endswith(
        "--model-type generic --auto-cast-type fp16 --disable-mixed-precision-accumulation"
    )


@pytest.mark.parametrize("name", ["mixed-precision-accumulation", "saturate-infinity", "fast-context-switch"])
def test_of_a_switchs_two_forms_the_later_wins(name):
    assert line(compiler_args=f"--enable-{name} --disable-{name}") == line(compiler_args=f"--disable-{name}")


@pytest.mark.parametrize(
    "flags",
    [
        "--no_cache --cache_dir=s3://bucket/x --retry_failed_compilation --log_level=INFO --dump=/tmp/x",
        "--cache_dir /tmp/zz --no_cache --log_level INFO --retry_failed_compilation --dump /tmp/x",
        "--cache_dir '/tmp/with space'",
        "--log_level INFO",
        "--dump --no_cache",
    ],
)
def test_flags_of_the_vendors_wrapper_are_not_passed_on(flags):
    assert line(environ={"NEURON_CC_FLAGS": flags}) == line()
    assert line(environ={"NEURON_CC_FLAGS": f"{flags} -O1 {flags} --model-type unet-inference"}) == line(
        compiler_args="-O1 --model-type unet-inference"
    )
    assert line(environ={"NEURON_CC_FLAGS": f"--undocumented {flags}"}) == line(compiler_args="--undocumented")


def test_split_as_a_shell_does():
    flags = "--internal-hlo2tensorizer-options='--tiled-inst-limit=99 --verify-hlo' --pipeline compile SaveTemps"
    got = arguments(Options.resolve({"target": "trn2"}, environ={"NEURON_CC_FLAGS": flags}), OLD)
    assert got[-4:] == ("--internal-hlo2tensorizer-options=--tiled-inst-limit=99 --verify-hlo", "--pipeline", "compile", "SaveTemps")
    with pytest.raises(OptionError, match="NEURON_CC_FLAGS"):
        Options.resolve({}, environ={"NEURON_CC_FLAGS": "--model-type='open"})


def test_unknown_flags_keep_their_order_and_repeat():
    assert line(compiler_args="--later-flag a --later-flag b --other").endswith(" --later-flag a --later-flag b --other")


@pytest.mark.parametrize("flag", ["--output x", "--output=x", "--framework=XLA", "--target trn1", "--logfile=l"])
def test_flags_that_only_we_set(flag):
    with pytest.raises(OptionError, match=r"compiler_args holds .* which the backend sets itself"):
        line(compiler_args=flag)
    with pytest.raises(OptionError, match="NEURON_CC_FLAGS holds"):
        line(environ={"NEURON_CC_FLAGS": flag})


def test_the_logical_core_is_an_option():
    assert line(compiler_args="-lnc=2") == line()
    for flag in ("-lnc 1", "--lnc=1", "--logical-nc-config=1"):
        with pytest.raises(OptionError, match="set the option 'lnc'"):
            line(compiler_args=flag)


@pytest.mark.parametrize("after", ["", " --auto-cast all"])
def test_a_flag_without_its_value(after):
    with pytest.raises(OptionError, match="--model-type lacks its value"):
        line(compiler_args=f"--model-type{after}")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("compiler_timeout", "soon", "give a number above 0"),
        ("compiler_timeout", 0, "give a number above 0"),
        ("compiler_timeout", float("nan"), "give a number above 0"),
        ("compiler_jobs", 1.5, "give a whole number above 0"),
        ("compiler_jobs", True, "give a whole number above 0"),
        ("lnc", "²", "give a whole number above 0"),
        ("lnc", "9" * 5000, "give a whole number above 0"),
        ("cache_dir", "a\0b", "give a string or a path"),
        ("neuronx_cc_input", "onnx", "'hlo', 'stablehlo'"),
        ("emulate", "sometimes", "'compiled', 'always', 'never'"),
    ],
)
def test_bad_options(name, value, says):
    with pytest.raises(OptionError, match=says):
        Options.resolve({name: value}, environ={})


def test_numbers_of_options():
    options = Options.resolve({}, environ={"NEURON_DYNAMO_COMPILER_TIMEOUT": "90", "NEURON_DYNAMO_COMPILER_JOBS": "3"})
    assert (options.compiler_timeout, options.compiler_jobs) == (90.0, 3)
