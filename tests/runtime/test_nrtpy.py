"""NrtpyExecutable against a module of nrtpy's documented interface; the real nrtpy was never here."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from neuron_dynamo.errors import CompilerMissingError, ExecutionError, NeffError
from neuron_dynamo.lowering.program import Program, Signature
from neuron_dynamo.options import Options
from neuron_dynamo.runtime import device, nrtpy
from tests.doubles import nrtpy as double
from tests.doubles.neff import Tensor, of_program, write_neff
from tests.host_programs import add, mlir_type, program, spec


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[types.ModuleType]:
    module = types.ModuleType("nrtpy")
    module.__spec__ = types.SimpleNamespace(name="nrtpy")  # type: ignore[assignment]
    module.NrtpyModel, module.NrtpyTensor = double.NrtpyModel, double.NrtpyTensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nrtpy", module)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    yield module
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == [], "the NEFF's file goes with its executable"


def load(made: Program, **given: object) -> nrtpy.NrtpyExecutable:
    return nrtpy.NrtpyExecutable(of_program(made), made.signature, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float8_e5m2], ids=str)
def test_types_come_through_bit_for_bit(dtype: torch.dtype) -> None:
    kind = mlir_type(spec(3, 4, dtype=dtype))
    made = program([spec(3, 4, dtype=dtype)], f"%0 = stablehlo.reverse %a0, dims = [1] : {kind}", ["%0"], [spec(3, 4, dtype=dtype)])
    executable = load(made)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    for _ in range(2):
        x = torch.randint(0, 2, (3, 4)).bool() if dtype is torch.bool else torch.randn(3, 4).mul(9).to(dtype)
        (result,) = executable([x])
        assert result.dtype is dtype and torch.equal(result.view(bits), x.view(bits).flip(1))


def test_layouts_scalars_and_parameters() -> None:
    executable, weight = load(add(spec(6, 4))), torch.nn.Parameter(torch.randn(4, 6))
    assert torch.equal(executable([weight.T, torch.ones(1).expand(6, 4)])[0], weight.detach().T + 1)
    assert load(add(spec()))([torch.tensor(1.5), torch.tensor(2.0)])[0] == 3.5


def test_a_mutated_input_has_one_tensor() -> None:
    kind = mlir_type(spec(5))
    made = program([spec(5)], f"%0 = stablehlo.add %a0, %a0 : {kind}", ["%0"], [spec(5)])
    made = Program(made.stablehlo, Signature(made.signature.inputs, made.signature.outputs, ((0, 0),)))
    executable, state = load(made), torch.ones(5)
    for step in range(1, 4):
        state = executable([state])[0]
        assert state.tolist() == [2.0**step] * 5


def test_no_elements() -> None:
    made = program([spec(0, 4), spec(2)], "", ["%a1", "%a0"], [spec(2), spec(0, 4)])
    neff = write_neff([Tensor("input1", (2,))], [Tensor("output0", (2,))], members={"program.mlir": add(spec(2)).stablehlo})
    assert nrtpy.NrtpyExecutable(neff, made.signature)._inputs == {1: "input1"}


def test_what_does_not_fit() -> None:
    with pytest.raises(NeffError, match="input0 has 12 bytes"):
        nrtpy.NrtpyExecutable(of_program(add(spec(3))), add(spec(4)).signature)
    with pytest.raises(NeffError, match="'input1'"):
        nrtpy.NrtpyExecutable(of_program(add(spec(3))), Signature((spec(3),), (spec(3),)))
    with pytest.raises(NeffError, match="no tensor 'output1'"):
        nrtpy.NrtpyExecutable(of_program(add(spec(3))), Signature((spec(3), spec(3)), (spec(3), spec(3))))
    with pytest.raises(NeffError, match="cannot be read"):
        nrtpy.NrtpyExecutable(b"x", add(spec(3)).signature)


def test_errors_carry_nrtpys_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double.NrtpyModel, "fault", "NRT_FAILURE(1)")
    with pytest.raises(ExecutionError, match=r"NRT Error NRT_FAILURE\(1\): Failed to load model"):
        load(add(spec(3)))
    executable = load(add(spec(3)))
    monkeypatch.setattr(double.NrtpyModel, "fault", "NRT_TIMEOUT(5)")
    with pytest.raises(ExecutionError, match=r"NRT_TIMEOUT\(5\): Failed to execute"):
        executable([torch.ones(3), torch.ones(3)])
    assert executable([torch.ones(3), torch.ones(3)])[0].tolist() == [2.0] * 3
    with pytest.raises(ExecutionError, match="input 1"):
        executable([torch.ones(3), torch.ones(4)])


def test_chosen_by_option() -> None:
    made = add(spec(3))
    options = Options.resolve({"target": "trn2", "runtime": "nrtpy"}, environ={})
    assert isinstance(device.load(of_program(made), made.stablehlo, made.signature, options), nrtpy.NrtpyExecutable)
    assert double.NrtpyModel.loaded == (0, False, 0, 1)
    device.load(of_program(made), b"... all_reduce_v1 ...", made.signature, options)
    assert double.NrtpyModel.loaded == (0, True, 0, 1)


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nrtpy")
    assert not nrtpy.available()
    with pytest.raises(CompilerMissingError, match="not installed"):
        load(add(spec(3)))
