"""The libnrt double notices what breaks the contract: else the tests that lean on it would prove nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_void_p

import pytest
import torch

from neuron_dynamo.runtime.nrt_api import Nrt
from tests.doubles.libnrt import Double, c_compiler, double
from tests.doubles.neff import Tensor, of_program, write_neff
from tests.host_programs import add, spec

pytestmark = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc, clang): the libnrt double cannot be built")

UNINITIALIZED, CLOSED, INVALID, BAD_INPUT = 13, 14, 2, 1002


@pytest.fixture
def lib() -> Iterator[Double]:
    lib = double()
    lib.reset()
    yield lib
    lib.reset()


def started(lib: Double) -> Nrt:
    api = Nrt(lib.path)
    assert api.nrt_init(3, b"2.0", b"1.0") == 0
    return api


def made(make: object, *arguments: object) -> c_void_p:
    handle = c_void_p()
    assert make(*arguments, byref(handle)) == 0  # type: ignore[operator]
    return handle


def load(api: Nrt, neff: bytes) -> c_void_p:
    return made(api.nrt_load, neff, len(neff), 0, -1)


def tensor(api: Nrt, size: int, core: int = 0) -> c_void_p:
    return made(api.nrt_tensor_allocate, 0, core, size, b"t")


def bound(api: Nrt, **tensors: c_void_p) -> c_void_p:
    handle = made(api.nrt_allocate_tensor_set)
    for name, each in tensors.items():
        assert api.nrt_add_tensor_to_tensor_set(handle, name.encode(), each) == 0
    return handle


def test_order(lib: Double) -> None:
    api, neff = Nrt(lib.path), of_program(add(spec(2)))
    assert api.nrt_load(neff, len(neff), 0, -1, byref(c_void_p())) == UNINITIALIZED and "nrt_load before nrt_init" in lib.violations()
    assert api.nrt_init(1, b"", b"") == INVALID and "framework 1" in lib.violations()
    started(lib)
    assert api.nrt_init(3, b"2.0", b"1.0") != 0 and "twice" in lib.violations()
    assert api.nrt_load(neff, len(neff), 0, 1, byref(c_void_p())) == INVALID and "deprecated" in lib.violations()
    model = load(api, neff)
    api.nrt_close()
    assert "nrt_close with 1 models" in lib.violations()
    assert api.nrt_unload(model) == CLOSED
    lib.reset()
    started(lib)
    assert api.nrt_unload(model) == 0 and api.nrt_unload(model) == INVALID and "after its release" in lib.violations()


def test_execution(lib: Double) -> None:
    api = started(lib)
    model = load(api, of_program(add(spec(2))))
    a, b, out, large, far = (tensor(api, size, core) for size, core in ((8, 0), (8, 0), (8, 0), (12, 0), (8, 1)))
    values = torch.ones(4)
    for each, size in ((a, 8), (large, 12), (far, 8)):
        assert api.nrt_tensor_write(each, values.data_ptr(), 0, size) == 0
    good = {"input0": a, "input1": a}
    cases = [
        ({"input0": a}, {"output0": out}, "without input1"),
        ({"input0": a, "input1": b}, {"output0": out}, "nothing was written to input1"),
        ({"input0": a, "input1": large}, {"output0": out}, "input1 has 12 bytes, not 8"),
        ({"input0": a, "input1": far}, {"output0": out}, "input1 is on core 1"),
        (good, {"output1": out}, "without output0"),
        (good, {"output0": out, "more": out}, "2 tensors of usage 1"),
        (good, {"output0": a}, "output 0 shares input 0"),
    ]
    sets = []
    for inputs, outputs, said in cases:
        sets += [bound(api, **inputs), bound(api, **outputs)]
        assert api.nrt_execute(model, sets[-2], sets[-1]) == BAD_INPUT
        assert said in lib.violations()
    assert api.nrt_tensor_read(out, values.data_ptr(), 0, 8) == INVALID and "nothing was written" in lib.violations()
    sets += [bound(api, **good), bound(api, output0=out)]
    assert api.nrt_execute(model, sets[-2], sets[-1]) == 0
    assert api.nrt_tensor_read(out, values.data_ptr(), 0, 8) == 0 and values.tolist() == [2, 2, 1, 1]
    assert api.nrt_tensor_read(out, values.data_ptr(), 4, 8) == INVALID and "8 bytes at 4 of 8" in lib.violations()
    stale = ctypes.c_void_p(a.value)
    api.nrt_tensor_free(byref(a))
    assert "in a set" in lib.violations() and not a
    assert api.nrt_tensor_write(stale, values.data_ptr(), 0, 8) == INVALID and "after its release" in lib.violations()
    for each in sets:
        api.nrt_destroy_tensor_set(byref(each))
    for each in (b, out, large, far):
        api.nrt_tensor_free(byref(each))
    api.nrt_unload(model)
    assert lib.live() == {"models": 0, "tensors": 0, "sets": 0, "infos": 0}


def test_a_mutated_input_must_share_its_memory(lib: Double) -> None:
    api = started(lib)
    tensors = [Tensor("input0", (2,)), Tensor("input1", (2,))], [Tensor("output0", (2,))]
    model = load(api, write_neff(*tensors, aliases=[(0, 1)], members={"program.mlir": add(spec(2)).stablehlo}))
    a, b, out = (tensor(api, 8) for _ in range(3))
    ones = torch.ones(2)
    for each in (a, b):
        assert api.nrt_tensor_write(each, ones.data_ptr(), 0, 8) == 0
    inputs, apart, together = bound(api, input0=a, input1=b), bound(api, output0=out), bound(api, output0=b)
    assert api.nrt_execute(model, inputs, apart) == BAD_INPUT and "output 0 does not share input 1" in lib.violations()
    assert api.nrt_execute(model, inputs, together) == 0
    for each in (inputs, apart, together):
        api.nrt_destroy_tensor_set(byref(each))
    for each in (a, b, out):
        api.nrt_tensor_free(byref(each))
    api.nrt_unload(model)


def test_collectives_and_garbage(lib: Double) -> None:
    api = started(lib)
    tensors = [Tensor("input0", (2,)), Tensor("input1", (2,))], [Tensor("output0", (2,))]
    together = write_neff(*tensors, members={"program.mlir": add(spec(2)).stablehlo, "collectives": b""})
    assert api.nrt_load(together, len(together), 0, -1, byref(c_void_p())) == INVALID and "with collectives" in lib.violations()
    assert (
        api.nrt_load_collectives(together, len(together), 0, -1, 4, 4, byref(c_void_p())) == INVALID and "rank 4 of 4" in lib.violations()
    )
    lib.reset()
    api = started(lib)
    damaged = together[:1100] + b"\0" * (len(together) - 1100)
    assert api.nrt_load(damaged, len(damaged), 0, -1, byref(c_void_p())) == INVALID
    assert lib.live()["models"] == 0 and lib.violations() == ""
