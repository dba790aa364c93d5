"""Shapes, dimensions, batches, ranks and manifests as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dynamo.errors import OptionError, WarmupError
from neuron_dynamo.warmup.jobs import InputShape, Model, Ranks, Script, parse_dim, parse_modes, parse_numbers, parse_ranks, parse_shape
from neuron_dynamo.warmup.manifest import read_manifest


def test_shapes() -> None:
    assert parse_shape("input_ids=1x128") == InputShape("input_ids", (1, 128))
    assert parse_shape("x=BxSx64:bfloat16") == InputShape("x", ("B", "S", 64), "bfloat16")
    assert parse_shape("0=7") == InputShape("0", (7,))
    assert parse_shape("scale=scalar:float32") == InputShape("scale", (), "float32")


@pytest.mark.parametrize("text", ["x", "x=", "=1x2", "x=1,2", "x=bx2", "x=1x", "x=1x2:", "x=-1"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(WarmupError, match="ND060"):
        parse_shape(text)


def test_numbers_dims_modes_ranks() -> None:
    assert parse_numbers("1,4,8") == (1, 4, 8) and parse_numbers("0-3,2,7") == (0, 1, 2, 3, 7)
    assert parse_dim("S=128,256") == ("S", (128, 256))
    assert parse_modes(["training", "inference", "training"]) == ("training", "inference") and parse_modes([]) == ("inference",)
    assert parse_ranks(4, None) == Ranks(4, (0, 1, 2, 3)) and parse_ranks(8, "0-1,7") == Ranks(8, (0, 1, 7))
    assert parse_ranks(0, None).each() == (None,)
    for wrong in (lambda: parse_numbers("1-"), lambda: parse_dim("s=1"), lambda: parse_modes(["eval"]), lambda: parse_ranks(2, "0-2")):
        with pytest.raises(WarmupError):
            wrong()
    with pytest.raises(WarmupError, match="no world size"):
        parse_ranks(0, "0")


def test_variants_are_all_combinations() -> None:
    shapes = (parse_shape("ids=BxS:int64"), parse_shape("mask=BxS"))
    job = Model("m:f", shapes, (("S", (128, 256)),), batch=(1, 4))
    assert [calls["ids"] for calls, _ in job.variants()] == [((b, s), "int64") for s in (128, 256) for b in (1, 4)]
    assert all(calls["mask"][0] == calls["ids"][0] and first is None for calls, first in job.variants())
    assert Model("m:f", batch=(1, 4)).variants() == [({}, 1), ({}, 4)]
    assert Model("m:f").variants() == [({}, None)]
    with pytest.raises(WarmupError, match="dimension S has no value"):
        Model("m:f", (parse_shape("x=S"),)).variants()
    with pytest.raises(WarmupError, match="no shape has a dimension T"):
        Model("m:f", (parse_shape("x=3"),), (("T", (1,)),)).variants()


MANIFEST = """
[options]
precision = "narrow"

[[model]]
factory = "models:make_llama"
modes = ["inference", "training"]
batch = [1, 4]
targets = ["host", "trn2"]
world_size = 2
[model.shapes]
input_ids = "BxS:int64"
[model.dims]
S = 128
[model.options]
fallback = "error"

[[script]]
script = "train.py"
args = ["--steps", 1]
world_size = 8
ranks = "0,7"
"""


def test_manifest(tmp_path: Path) -> None:
    path = tmp_path / "warm.toml"
    path.write_text(MANIFEST)
    *models, script = read_manifest(path)
    assert script == Script("train.py", ("--steps", "1"), False, Ranks(8, (0, 7)))
    assert [model.options["target"] for model in models if isinstance(model, Model)] == ["host", "trn2"]
    options = {"precision": "narrow", "fallback": "error", "target": "host"}
    shapes, dims = (InputShape("input_ids", ("B", "S"), "int64"),), (("S", (128,)),)
    modes = ("inference", "training")
    assert models[0] == Model("models:make_llama", shapes, dims, (1, 4), modes, options=options, ranks=Ranks(2, (0, 1)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[model]\n", "cannot be read"),
        ("", "names no model and no script"),
        ("[[model]]\nfactory = 'm:f'\nshape = 1\n", "unknown shape"),
        ("[[model]]\nbatch = [1]\n", "lacks 'factory'"),
        ("[[model]]\nfactory = 'm:f'\nbatch = ['1']\n", "not a list of numbers"),
        ("[[model]]\nfactory = 'm:f'\ndynamic = 'yes'\n", "dynamic is 'yes'"),
        ("[[script]]\nscript = 'a.py'\nranks = '0'\n", "no world size"),
    ],
)
def test_a_bad_manifest_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "warm.toml"
    path.write_text(text)
    with pytest.raises(WarmupError, match=message):
        read_manifest(path)


def test_a_bad_option_of_a_manifest_is_told(tmp_path: Path) -> None:
    path = tmp_path / "warm.toml"
    path.write_text("[[model]]\nfactory = 'm:f'\ntargets = ['trn9']\n")
    with pytest.raises(OptionError, match="trn9"):
        read_manifest(path)
    with pytest.raises(WarmupError, match="cannot be read"):
        read_manifest(tmp_path / "absent.toml")
