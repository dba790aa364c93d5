"""NrtExecutable through the libnrt double: the order of calls, what is sent and when, conventions, faults, lifetimes, threads.

Nothing here ran on a Neuron device. Without a C compiler there is no double, and these tests are skipped.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from neuron_dynamo.errors import CompilerMissingError, ExecutionError, NeffError, NumericalWarning
from neuron_dynamo.lowering.program import Program, Signature, TensorSpec
from neuron_dynamo.runtime import nrt, nrt_api, residency
from neuron_dynamo.runtime.nrt_executable import NrtExecutable, load
from tests.doubles.libnrt import Double, as_in_a_new_process, c_compiler
from tests.doubles.neff import Tensor, of_program, write_neff
from tests.host_programs import add, mlir_type, program, spec

pytestmark = pytest.mark.skipif(c_compiler() is None, reason="no C compiler (cc, gcc, clang): the libnrt double cannot be built")


@pytest.fixture
def lib(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    for variable in ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        monkeypatch.delenv(variable, raising=False)
    with as_in_a_new_process() as lib:
        yield lib


def run_of(lib: Double, made: Program, resident: str = residency.EXACT) -> NrtExecutable:
    return load(of_program(made), made.signature, library=lib.path, resident=resident)


def check(executable: NrtExecutable, a: torch.Tensor, b: torch.Tensor) -> None:
    (result,) = executable([a, b])
    assert torch.equal(result, a + b) and result.is_contiguous()


# Order, lifetimes


def test_order_and_lifetimes(lib: Double) -> None:
    made = add(spec(4, 3))
    executable = run_of(lib, made)
    assert lib.calls("nrt_init") == lib.calls("nrt_load") == 1
    assert lib.live() == {"models": 1, "tensors": 3, "sets": 2, "infos": 0}
    assert lib.device_bytes == 3 * 4 * 3 * 4
    for _ in range(3):
        check(executable, torch.randn(4, 3), torch.randn(4, 3))
    assert lib.calls("nrt_execute") == 3 and lib.calls("nrt_tensor_allocate") == 3
    second = run_of(lib, made)
    assert lib.calls("nrt_init") == 1 and lib.calls("nrt_load") == 2
    del executable, second
    gc.collect()
    assert lib.live() == {"models": 0, "tensors": 0, "sets": 0, "infos": 0} and lib.calls("nrt_close") == 0


def test_a_steady_call_is_one_execution_and_a_read_for_each_output(lib: Double) -> None:
    """With inputs that are held and have not changed. What such a call costs in time, tools/nrt_overhead measures."""
    kind = mlir_type(spec(2, 2))
    body = f"%0 = stablehlo.add %a0, %a1 : {kind}\n%1 = stablehlo.subtract %a0, %a1 : {kind}"
    executable = run_of(lib, program([spec(2, 2)] * 2, body, ["%0", "%1"], [spec(2, 2)] * 2))
    a, b = torch.randn(2, 2), torch.randn(2, 2)
    for _ in range(3):  # after which both stay on the device
        executable([a, b])
    before = {name: lib.calls(name) for name in nrt_api.PROTOTYPES}
    for _ in range(10):
        total, difference = executable([a, b])
        assert torch.equal(total, a + b) and torch.equal(difference, a - b)
    calls = {name: lib.calls(name) - count for name, count in before.items() if lib.calls(name) != count}
    assert calls == {"nrt_execute": 10, "nrt_tensor_read": 20}


def test_release_and_close(lib: Double) -> None:
    executable, other = run_of(lib, add(spec(2))), run_of(lib, add(spec(3)))
    executable.release()
    executable.release()
    with pytest.raises(ExecutionError, match="unloaded"):
        executable([torch.ones(2), torch.ones(2)])
    check(other, torch.ones(3), torch.ones(3))
    nrt.runtime().close()
    assert lib.calls("nrt_close") == 1 and lib.live()["models"] == 0
    with pytest.raises(ExecutionError, match="unloaded"):
        other([torch.ones(3), torch.ones(3)])
    with pytest.raises(ExecutionError, match="was closed"):
        run_of(lib, add(spec(2)))


def test_a_process_that_just_ends_closes_in_order(tmp_path: Path, lib: Double) -> None:
    """One child: exit without a word, a forked child of it, and a daemon thread that was still calling."""
    report = tmp_path / "report"
    code = """
import os, sys, threading, time, torch
from neuron_dynamo.errors import ForkError
from neuron_dynamo.runtime import nrt
from neuron_dynamo.runtime.nrt_executable import load
from tests.doubles.libnrt import Double
from tests.doubles.neff import of_program
from tests.host_programs import add, spec
from pathlib import Path
lib = Double(Path(sys.argv[1]))
made = add(spec(8))
neff = of_program(made)
a = torch.ones(8)
assert nrt.device_count(sys.argv[1]) == 2 and lib.calls("nrt_init") == 0
keep = [load(neff, made.signature, library=sys.argv[1]) for _ in range(3)]
assert keep[0]([a, a])[0].sum() == 16
pid = os.fork()
if pid == 0:
    for use in (lambda: keep[0]([a, a]), lambda: load(neff, made.signature, library=sys.argv[1])):
        try:
            use()
        except ForkError as error:
            assert "spawn" in str(error) and error.code == "ND041"
            print("refused", flush=True)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
def work():
    while True:
        keep[1]([a, a])
threading.Thread(target=work, daemon=True).start()
while lib.calls("nrt_execute") < 5:
    time.sleep(0.001)
print(lib.violations() or "kept")
"""
    environ = {
        **os.environ,
        "NRT_DOUBLE_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join(filter(None, (".", os.environ.get("PYTHONPATH")))),
    }
    done = subprocess.run([sys.executable, "-c", code, lib.path], env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\nrefused\n0\nkept\n"), done.stdout + done.stderr
    assert report.read_text().startswith("closed: 0 violations ()"), "and only once: the fork closed nothing"
    assert len(report.read_text().splitlines()) == 1


# What is sent


def written(lib: Double, executable: NrtExecutable, *inputs: torch.Tensor) -> int:
    """Bytes that one call sends; its result is checked."""
    before = lib.bytes_written
    (result,) = executable(list(inputs))
    assert torch.equal(result, inputs[0].detach() + inputs[1].detach())
    return lib.bytes_written - before


def resident(lib: Double, executable: NrtExecutable, weight: torch.Tensor) -> None:
    """Calls until the weight stays on the device."""
    for _ in range(3):
        written(lib, executable, torch.randn(weight.shape), weight)
    assert written(lib, executable, torch.randn(weight.shape), weight) == weight.nbytes


@pytest.mark.parametrize("shape", [(16, 8), (256, 256)])
def test_a_weight_is_sent_only_when_it_changes(lib: Double, shape: tuple[int, ...]) -> None:
    """(256, 256) is past the size that is compared whole."""
    executable = run_of(lib, add(spec(*shape)))
    weight = torch.nn.Parameter(torch.randn(shape))
    one = weight.nbytes
    resident(lib, executable, weight)

    def changed(change: object) -> None:
        assert written(lib, executable, torch.randn(shape), weight) == 2 * one, change
        assert written(lib, executable, torch.randn(shape), weight) == one, change

    with torch.no_grad():
        weight.add_(1)
    changed("in place")
    with torch.no_grad():
        weight[0, 0] = 7.0
    changed("one element")
    weight.data.mul_(0.5)
    changed(".data, which moves no version counter")
    weight.data = torch.randn(shape)
    changed("other data")
    weight.detach().numpy()[:] = 3.0
    changed("NumPy")
    view = weight.detach().view(-1)
    view.zero_()
    changed("a view")
    weight.data.copy_(torch.randn(shape))
    changed("other values")
    if len(set(shape)) == 1:
        weight.data = weight.data.T
        changed("the same memory in another order")


def test_data_swapped_back_to_a_reused_address(lib: Double) -> None:
    executable = run_of(lib, add(spec(64, 64)))
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    resident(lib, executable, weight)
    version, seen = weight._version, {weight.data_ptr()}
    for value in range(1, 30):
        weight.data = torch.empty(0)
        weight.data = torch.full((64, 64), float(value))
        seen.add(weight.data_ptr())
        written(lib, executable, torch.ones(64, 64), weight)
    assert weight._version == version and len(seen) < 30, "no address came again, so this tests nothing"


def test_other_tensors_at_the_same_address(lib: Double) -> None:
    executable = run_of(lib, add(spec(8, 8)))
    b, memory = torch.zeros(8, 8), np.zeros((8, 8), np.float32)
    for value in range(50):
        memory.fill(value)
        written(lib, executable, torch.from_numpy(memory), b)  # a new tensor, often with the id of the last one


def test_two_weights_in_turns_and_swapped_tensors(lib: Double) -> None:
    executable = run_of(lib, add(spec(8, 8)))
    first, second, zeros = torch.randn(8, 8), torch.randn(8, 8), torch.zeros(8, 8)
    for weight in (first, second, first, first, first, second, second, second):
        written(lib, executable, zeros, weight)
    residency.forget_all()  # swap_tensors refuses tensors with weak references
    torch.utils.swap_tensors(first, second)
    for weight in (first, second, second):
        written(lib, executable, zeros, weight)


def test_inference_tensors_are_always_sent(lib: Double) -> None:
    executable = run_of(lib, add(spec(8)))
    with torch.inference_mode():
        weight = torch.randn(8)
        for _ in range(4):
            assert written(lib, executable, torch.zeros(8), weight) == 64
            weight.add_(1)


def test_one_element_written_past_the_version_counter(lib: Double) -> None:
    executable, other = run_of(lib, add(spec(256, 256))), run_of(lib, add(spec(256, 256)))
    weight = torch.nn.Parameter(torch.randn(256, 256))
    one = weight.nbytes
    resident(lib, executable, weight)
    resident(lib, other, weight)
    version = weight._version
    rows = weight.detach().numpy()
    for index in (0, 12345, 65535):
        weight.data.view(-1)[index] += 9.0
        for run in (executable, other):
            assert written(lib, run, torch.randn(256, 256), weight) == 2 * one
            assert written(lib, run, torch.randn(256, 256), weight) == one
        rows[[3, 200]] = rows[[200, 3]]
        assert written(lib, executable, torch.randn(256, 256), weight) == 2 * one
        rows[[3, 200]] = rows[[200, 3]]
        assert written(lib, executable, torch.randn(256, 256), weight) == 2 * one
        assert written(lib, executable, torch.randn(256, 256), weight) == one
        assert written(lib, other, torch.randn(256, 256), weight) == one, "as it was sent there"
    assert weight._version == version


def test_copies_are_shared_and_go_with_their_executables(lib: Double) -> None:
    """One copy for two executables; none of activations, nor of weights that change between calls."""
    executable, other = run_of(lib, add(spec(256, 256))), run_of(lib, add(spec(256, 256)))
    weight = torch.randn(256, 256)
    for _ in range(6):
        weight.add_(1)
        written(lib, executable, torch.randn(256, 256), weight)
    assert not residency._copies
    resident(lib, executable, weight)
    resident(lib, other, weight)
    assert len(residency._copies) == 1
    del executable
    gc.collect()
    assert len(residency._copies) == 1
    del other
    gc.collect()
    assert not residency._copies


def test_forget_all(lib: Double) -> None:
    executable = run_of(lib, add(spec(256, 256)), resident=residency.VERSION)
    weight, index = torch.randn(256, 256), 12345
    resident(lib, executable, weight)
    weight.data.view(-1)[index] = 9.0
    residency.forget_all()
    assert written(lib, executable, torch.randn(256, 256), weight) == 2 * weight.nbytes


def test_weights_that_are_not_dense(lib: Double) -> None:
    executable = run_of(lib, add(spec(6, 4)))
    memory = torch.randn(4, 6)
    weight = memory.T
    for _ in range(3):
        written(lib, executable, torch.zeros(6, 4), weight)
    assert written(lib, executable, torch.zeros(6, 4), weight) == 96
    memory.mul_(2)
    assert written(lib, executable, torch.zeros(6, 4), weight) == 192
    for other in (torch.randn(1).expand(6, 4), torch.randn(12, 8)[::2, ::2], torch.randn(30)[5:29].view(6, 4)):
        for _ in range(3):
            written(lib, executable, torch.zeros(6, 4), other)


def test_memory_that_is_gone_is_refused_not_read(lib: Double) -> None:
    executable = run_of(lib, add(spec(64, 64)))
    weight = torch.randn(64, 64)
    resident(lib, executable, weight)
    weight.untyped_storage().resize_(0)
    with pytest.raises(ExecutionError, match=r"input 1 .* no memory"):
        executable([torch.zeros(64, 64), weight])
    with pytest.raises(ExecutionError, match=r"input 0 .*\(64, 64\).*\(3,\)"):
        executable([torch.zeros(3), torch.zeros(64, 64)])
    with pytest.raises(ExecutionError, match="takes 2 inputs"):
        executable([torch.zeros(64, 64)])


def test_calls_keep_no_host_memory_alive(lib: Double) -> None:
    import weakref

    executable = run_of(lib, add(spec(8)))
    a = torch.randn(8)
    for _ in range(4):
        check(executable, a, a)
    alive = weakref.ref(a.untyped_storage())
    del a
    gc.collect()
    assert alive() is None


# Mutated inputs


def counter(suffix: str, lib: Double) -> NrtExecutable:
    """(x, state) -> (x * state, state + 1), the second in the memory of `state`."""
    kind = mlir_type(spec(5))
    body = f"""%one = stablehlo.constant dense<1.0> : {kind}
%0 = stablehlo.multiply %a0, %a1 : {kind}
%1 = stablehlo.add %a1, %one : {kind}"""
    made = program([spec(5), spec(5)], body, ["%0", "%1"], [spec(5), spec(5)])
    signature = Signature(made.signature.inputs, made.signature.outputs, ((1, 1),))
    return load(of_program(Program(made.stablehlo, signature), suffix=suffix), signature, library=lib.path)


@pytest.mark.parametrize("suffix", ["", ".must_alias_input"])
def test_aliased_outputs_share_their_inputs_memory(lib: Double, suffix: str) -> None:
    executable = counter(suffix, lib)
    assert lib.live()["tensors"] == 3
    state, x = torch.zeros(5), torch.full((5,), 2.0)
    for step in range(4):
        product, new = executable([x, state])
        assert torch.equal(product, torch.full((5,), 2.0 * step)) and torch.equal(new, torch.full((5,), step + 1.0))
        assert torch.equal(state, torch.full((5,), float(step))), "the host's tensor is the graph's own to write"
        state.copy_(new)
    for _ in range(4):  # a state that is not written back is sent again each time
        assert torch.equal(executable([x, state])[1], torch.full((5,), 5.0))


def test_which_aliases_are_bound() -> None:
    a, b = TensorSpec((2,), torch.float32), TensorSpec((3,), torch.float32)
    signature = Signature((a, b, a), (a, a, b, a), ((3, 2), (1, 0), (0, 0), (2, 0), (3, 0)))
    assert signature.bound_aliases() == ((0, 0), (3, 2))


# Types and shapes


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float8_e5m2],
    ids=str,
)
def test_types_come_through_bit_for_bit(lib: Double, dtype: torch.dtype) -> None:
    kind = mlir_type(spec(3, 5, dtype=dtype))
    made = program([spec(3, 5, dtype=dtype)], f"%0 = stablehlo.reverse %a0, dims = [1] : {kind}", ["%0"], [spec(3, 5, dtype=dtype)])
    x = torch.randint(0, 2, (3, 5)).bool() if dtype is torch.bool else torch.randn(3, 5).mul(9).to(dtype)
    (result,) = run_of(lib, made)([x])
    assert result.dtype is dtype
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    assert torch.equal(result.view(bits), x.view(bits).flip(1))


def test_scalars_and_no_inputs(lib: Double) -> None:
    made = program([], "%0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>", ["%0"], [spec(2, dtype=torch.int32)])
    assert run_of(lib, made)([])[0].tolist() == [1, 2]
    check(run_of(lib, add(spec())), torch.tensor(1.5), torch.tensor(2.0))


def test_tensors_of_no_elements(lib: Double) -> None:
    made = program([spec(0, 4), spec(2)], "", ["%a1", "%a0"], [spec(2), spec(0, 4)])
    executable = run_of(lib, made)
    for _ in range(3):
        full, empty = executable([torch.empty(0, 4), torch.ones(2)])
        assert full.tolist() == [1, 1] and empty.shape == (0, 4)
    without = write_neff([Tensor("input1", (2,))], [Tensor("output0", (2,))], members={"program.mlir": add(spec(2)).stablehlo})
    load(without, made.signature, library=lib.path)


def test_a_boolean_of_the_device_is_made_0_or_1(lib: Double) -> None:
    """A device may hold any byte for true; PyTorch may not."""
    kind = mlir_type(spec(4, dtype=torch.uint8))
    made = program([spec(4, dtype=torch.uint8)], f"%0 = stablehlo.add %a0, %a0 : {kind}", ["%0"], [spec(4, dtype=torch.uint8)])
    signature = Signature(made.signature.inputs, (spec(4, dtype=torch.bool),))
    (result,) = load(of_program(made), signature, library=lib.path)([torch.tensor([0, 1, 100, 0], dtype=torch.uint8)])
    assert result.dtype is torch.bool and result.view(torch.uint8).tolist() == [0, 1, 1, 0]


# What does not fit


def test_an_input_that_the_neff_does_not_list_is_not_sent(lib: Double) -> None:
    made = add(spec(3))
    unused = Signature((*made.signature.inputs, spec(7)), made.signature.outputs)
    executable = load(of_program(made), unused, library=lib.path)
    assert torch.equal(executable([torch.ones(3), torch.ones(3), torch.ones(7)])[0], torch.full((3,), 2.0))
    assert lib.bytes_written == 24


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ([Tensor("input0", (4,)), Tensor("input1", (3,))], [Tensor("output0", (3,))], "input0 has 16 bytes"),
        ([Tensor("input0", (3,), torch.int32), Tensor("input1", (3,))], [Tensor("output0", (3,))], "bytes of INT32"),
        ([Tensor("input0", (3,)), Tensor("input1", (3,))], [Tensor("output0", (6,), torch.bfloat16)], "output0 has 12 bytes of BFLOAT16"),
        ([Tensor("input0", (3,)), Tensor("x", (3,))], [Tensor("output0", (3,))], "a tensor 'x'"),
        ([Tensor("input0", (3,)), Tensor("input2", (3,))], [Tensor("output0", (3,))], "'input2'"),
        ([Tensor("output1", (3,)), Tensor("input1", (3,))], [Tensor("output0", (3,))], "'output1'"),
        ([Tensor("input0", (3,)), Tensor("input1", (3,))], [], "no tensor 'output0'"),
    ],
)
def test_a_neff_that_does_not_fit_its_program(lib: Double, inputs: list[Tensor], outputs: list[Tensor], said: str) -> None:
    with pytest.raises(NeffError, match=said):
        load(write_neff(inputs, outputs), add(spec(3)).signature, library=lib.path)


def test_no_neff_at_all_starts_nothing(lib: Double) -> None:
    with pytest.raises(NeffError, match="cannot be read"):
        load(b"garbage" * 1000, add(spec(3)).signature, library=lib.path)
    assert lib.calls("nrt_init") == 0
    with pytest.raises(NeffError, match="NRT_INVALID"):
        load(of_program(add(spec(3)))[:-9], add(spec(3)).signature, library=lib.path)


def test_logical_cores_must_match(lib: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    made = add(spec(3))
    with pytest.raises(ExecutionError, match=r"logical cores of 1 .* the runtime has 2"):
        load(of_program(made, lnc=1), made.signature, library=lib.path)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    check(load(of_program(made, lnc=1), made.signature, library=lib.path), torch.ones(3), torch.ones(3))
    with pytest.raises(ExecutionError, match="NEURON_LOGICAL_NC_CONFIG=2"):
        run_of(lib, made)


def test_cores(lib: Double) -> None:
    made = add(spec(3))
    check(load(of_program(made), made.signature, library=lib.path, core=1), torch.ones(3), torch.ones(3))
    with pytest.raises(ExecutionError, match=r"core 2 .* sees 2 "):
        load(of_program(made), made.signature, library=lib.path, core=2)


def test_collectives_are_loaded_with_their_rank(lib: Double) -> None:
    made = add(spec(3))
    tensors = [Tensor(f"input{i}", (3,)) for i in range(2)], [Tensor("output0", (3,))]
    neff = write_neff(*tensors, members={"program.mlir": made.stablehlo, "collectives": b""})
    check(load(neff, made.signature, library=lib.path, collectives=(1, 4)), torch.ones(3), torch.ones(3))
    assert (lib.calls("nrt_load"), lib.calls("nrt_load_collectives")) == (0, 1)


# Faults


def test_a_nan_is_a_warning_and_the_outputs_are_valid(lib: Double) -> None:
    executable = run_of(lib, add(spec(2)))
    with pytest.warns(NumericalWarning, match=r"ND142: .*NRT_EXEC_COMPLETED_WITH_NUM_ERR \(1003\)"):
        (result,) = executable([torch.tensor([1.0, float("nan")]), torch.ones(2)])
    assert result[0] == 2 and result[1].isnan()
    check(executable, torch.ones(2), torch.ones(2))


def test_errors_carry_the_runtimes_text(lib: Double) -> None:
    lib.fail("nrt_init", 1)
    with pytest.raises(ExecutionError, match=r"nrt_init returned NRT_FAILURE \(1\)[\s\S]*NEURON_RT_VISIBLE_CORES"):
        run_of(lib, add(spec(2)))
    executable = run_of(lib, add(spec(2)))  # the next attempt starts it
    weight = torch.ones(2)
    for _ in range(3):
        check(executable, torch.ones(2), weight)
    lib.fail("nrt_execute", 5)
    with pytest.raises(ExecutionError, match=r"ND040: running .* NRT_TIMEOUT \(5\)"):
        executable([torch.ones(2), weight])
    before = lib.bytes_written
    check(executable, torch.ones(2), weight)
    assert lib.bytes_written - before == 16, "after a failure nothing on the device is trusted"
    lib.fail("nrt_tensor_write", 1200)
    with pytest.raises(ExecutionError, match=r"sending input 0 .* unknown status \(1200\)"):
        executable([torch.ones(2), weight])
    lib.fail("nrt_tensor_read", 4)
    with pytest.raises(ExecutionError, match=r"reading output 0 .* NRT_RESOURCE \(4\)"):
        executable([torch.ones(2), weight])
    check(executable, torch.ones(2), weight)


LOADING = {
    "nrt_load": 1,
    "nrt_get_model_tensor_info": 1,
    "nrt_allocate_tensor_set": 2,
    "nrt_tensor_allocate": 3,
    "nrt_add_tensor_to_tensor_set": 3,
}
"""How often one load calls each."""


@pytest.mark.parametrize(("function", "after"), [(function, after) for function, times in LOADING.items() for after in range(times)])
def test_a_failing_load_leaks_nothing(lib: Double, function: str, after: int) -> None:
    """Each call in turn fails, and then the next load is a good one."""
    made = add(spec(64))
    lib.fail(function, 4, after=after)
    with pytest.raises(ExecutionError, match=r"NRT_RESOURCE \(4\)"):
        run_of(lib, made)
    assert lib.live() == {"models": 0, "tensors": 0, "sets": 0, "infos": 0}
    check(run_of(lib, made), torch.ones(64), torch.ones(64))


def test_a_refused_neff_is_the_artifacts_fault_and_a_full_device_is_not(lib: Double) -> None:
    for status, kind in ((2, NeffError), (10, NeffError), (4, ExecutionError), (9, ExecutionError)):
        lib.fail("nrt_load", status)
        with pytest.raises(kind):
            run_of(lib, add(spec(2)))


# Threads


def test_threads_start_it_once_and_take_turns(lib: Double) -> None:
    made = add(spec(32))
    neff, executables, faults = of_program(made), [], []
    shared: list[NrtExecutable] = []

    def work(number: int) -> None:
        try:
            mine = load(neff, made.signature, library=lib.path)
            executables.append(mine)
            shared.append(mine)
            for i in range(40):
                for executable in (mine, shared[0]):
                    a = torch.full((32,), float(1000 * number + i))
                    assert torch.equal(executable([a, a])[0], a + a)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == [] and lib.calls("nrt_init") == 1 and len(executables) == 4


# Leaks


def test_many_calls_leak_nothing(lib: Double) -> None:
    """NEURON_DYNAMO_LEAK_CALLS=10000 for the long run."""
    calls = int(os.environ.get("NEURON_DYNAMO_LEAK_CALLS", "1000"))
    executable = run_of(lib, add(spec(64, 64)))
    weight = torch.randn(64, 64)

    def rounds(count: int) -> None:
        for i in range(count):
            executable([torch.randn(64, 64), weight])
            if i % 100 == 50:
                weight.add_(1)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    rounds(200)
    gc.collect()
    live, held, memory = lib.live(), len(gc.get_objects()), resident_bytes()
    rounds(calls)
    gc.collect()
    assert lib.live() == live == {"models": 1, "tensors": 3, "sets": 2, "infos": 0}
    assert len(gc.get_objects()) - held < 100
    assert resident_bytes() - memory < 4 << 20, "a leaked 16 KB tensor a call would be 16 MB"


# The machine


def test_what_the_machine_is(lib: Double, tmp_path: Path) -> None:
    product = tmp_path / "product_name"
    product.write_text("trn1.32xlarge\n")

    def ask(family: int, **environ: str) -> tuple[str, int, str] | None:
        lib.configure(family=family)
        machine = nrt.detect(lib.path, environ, product)
        return (machine.target, machine.lnc, machine.source) if machine else None

    assert [ask(family) for family in (2, 4, 5, 14)] == [
        ("trn1", 1, "libnrt"),
        ("inf2", 1, "libnrt"),
        ("trn2", 2, "libnrt"),
        ("trn3", 2, "libnrt"),
    ]
    assert ask(5, NEURON_LOGICAL_NC_CONFIG="1") == ("trn2", 1, "libnrt")
    assert ask(2, NEURON_PLATFORM_TARGET_OVERRIDE="trn3") == ("trn3", 2, "NEURON_PLATFORM_TARGET_OVERRIDE")
    assert ask(0) == ("trn1", 1, "product name")
    product.write_text("m5.large\n")
    assert ask(0) is None
    assert nrt.detect(str(tmp_path / "none"), {}, tmp_path / "none") is None
    lib.configure(cores=0)
    assert nrt.device_count(lib.path) == 0 and nrt.device_count(str(tmp_path / "none")) == 0
    assert lib.calls("nrt_init") == 0


def test_where_the_library_is_looked_for(lib: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nrt_api, "LIBRARY_FOLDER", tmp_path)
    assert nrt_api.find_library(environ={}) is None
    folder = str(Path(lib.path).parent)
    assert nrt_api.find_library(environ={"LD_LIBRARY_PATH": f"/nowhere:{folder}"}) == lib.path
    (tmp_path / "libnrt.so.1").write_text("no library")
    assert nrt_api.find_library(environ={}) == str(tmp_path / "libnrt.so.1")
    with pytest.raises(CompilerMissingError, match="cannot be loaded"):
        nrt_api.Nrt(str(tmp_path / "libnrt.so.1"))
    with pytest.raises(CompilerMissingError, match=r"libnrt.* is not in /nowhere"):
        load(of_program(add(spec(2))), add(spec(2)).signature, library="/nowhere/libnrt.so")


@pytest.mark.parametrize(("text", "cores"), [("", None), ("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0,2-3", (0, 2, 3))])
def test_visible_cores(text: str, cores: tuple[int, ...] | None) -> None:
    assert nrt.visible_cores({"NEURON_RT_VISIBLE_CORES": text}) == cores


@pytest.mark.parametrize("text", ["x", "0-", "3-1", "0,,1", "-1"])
def test_visible_cores_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="NEURON_RT_VISIBLE_CORES"):
        nrt.visible_cores({"NEURON_RT_VISIBLE_CORES": text})
