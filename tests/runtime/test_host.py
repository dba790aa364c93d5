"""HostExecutable: values, layouts, pointers that move or are reused, dtypes, aliasing, threads."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from neuron_dynamo import xla
from neuron_dynamo.errors import ExecutionError
from neuron_dynamo.lowering.program import DTYPE_NAMES
from neuron_dynamo.runtime.host import HostExecutable
from neuron_dynamo.runtime.inputs import Admission
from tests.host_programs import add, build, mlir_type, program, spec


@pytest.fixture(scope="module")
def matmul() -> HostExecutable:
    """(a: 4x16, b: 16x8) -> a @ b."""
    body = "%0 = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>"
    return build(program([spec(4, 16), spec(16, 8)], body, ["%0"], [spec(4, 8)]))


@pytest.fixture(scope="module")
def plus() -> HostExecutable:
    return build(add(spec(32, 32)))


def check(executable: HostExecutable, a: torch.Tensor, b: torch.Tensor, op: Callable[..., torch.Tensor] = torch.add) -> None:
    (result,) = executable([a, b])
    torch.testing.assert_close(result, op(a.detach(), b.detach()))
    assert result.is_contiguous() and not result.requires_grad


def test_values_with_cached_and_new_pointers(plus: HostExecutable) -> None:
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    for _ in range(3):
        check(plus, a, b)
    check(plus, b, a)
    for _ in range(20):
        check(plus, torch.randn(32, 32), b)


def test_in_place_writes_between_calls_are_seen(plus: HostExecutable) -> None:
    a, b = torch.zeros(32, 32), torch.zeros(32, 32)
    for step in range(5):
        a.add_(1)
        b[step, 0] = 100.0
        check(plus, a, b)


def test_reused_addresses_of_freed_tensors(plus: HostExecutable) -> None:
    b, seen = torch.randn(32, 32), set()
    for _ in range(300):
        a = torch.randn(32, 32)
        seen.add(a.data_ptr())
        check(plus, a, b)
        del a
    assert len(seen) < 300, "the allocator never reused an address, so this tests nothing"


def test_calls_keep_no_memory_alive(plus: HostExecutable) -> None:
    import weakref

    a = torch.randn(32, 32)
    check(plus, a, a)
    alive = weakref.ref(a.untyped_storage())
    del a
    gc.collect()
    assert alive() is None


def test_parameters_whose_data_is_swapped(plus: HostExecutable) -> None:
    parameter, b = torch.nn.Parameter(torch.randn(32, 32)), torch.randn(32, 32)
    check(plus, parameter, b)
    parameter.data = torch.randn(32, 32)
    check(plus, parameter, b)
    parameter.data = torch.randn(32, 32).T
    check(plus, parameter, b)
    with torch.no_grad():
        parameter.copy_(torch.ones(32, 32))
    check(plus, parameter, b)
    parameter.data = torch.randn(16, 64)
    with pytest.raises(ExecutionError, match=r"input 0 .*\(32, 32\).*\(16, 64\)"):
        plus([parameter, b])


def test_storage_that_is_resized_or_replaced(plus: HostExecutable) -> None:
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    check(plus, a, b)
    a.untyped_storage().resize_(4 * 64 * 1024)
    a.copy_(torch.randn(32, 32))
    check(plus, a, b)
    a.set_(torch.randn(2048), 1024, (32, 32), (32, 1))
    check(plus, a, b)
    a.untyped_storage().resize_(0)
    with pytest.raises(ExecutionError, match=r"input 0 .* no memory"):
        plus([a, b])
    transposed = torch.randn(32, 32).T
    check(plus, transposed, b)
    transposed.untyped_storage().resize_(64)
    with pytest.raises(ExecutionError, match=r"input 0 .* no memory"):
        plus([transposed, b])


def test_same_pointer_but_other_strides_or_shape(matmul: HostExecutable) -> None:
    memory, b = torch.randn(64), torch.randn(16, 8)
    a, transposed = memory.view(4, 16), memory.view(16, 4).T
    assert a.data_ptr() == transposed.data_ptr() and a.shape == transposed.shape
    for _ in range(3):
        check(matmul, a, b, torch.matmul)
        check(matmul, transposed, b, torch.matmul)
    with pytest.raises(ExecutionError, match="input 0"):
        matmul([memory.view(16, 4), b])
    check(matmul, memory.as_strided((4, 16), (0, 1)), b, torch.matmul)
    check(matmul, torch.randn(1).expand(4, 16), b, torch.matmul)
    check(matmul, torch.randn(4, 32)[:, ::2], b, torch.matmul)


@pytest.mark.parametrize("offset", [0, 1, 3, 4, 16])
def test_unaligned_memory_is_read_anew_each_call(plus: HostExecutable, offset: int) -> None:
    a, b = torch.randn(1024 + offset)[offset:].view(32, 32), torch.randn(32, 32)
    for _ in range(3):
        check(plus, a, b)
        check(plus, b, a)
        a.mul_(2)


def test_memory_not_aligned_to_its_own_dtype(plus: HostExecutable) -> None:
    raw = bytearray(4 * 1024 + 1)
    a = torch.frombuffer(raw, dtype=torch.uint8)[1:]
    a.copy_(torch.randn(1024).view(torch.uint8))
    a = torch.frombuffer(raw, dtype=torch.float32, offset=1, count=1024).view(32, 32)
    expected = a.clone() + 1
    assert torch.equal(plus([a, torch.ones(32, 32)])[0], expected)


def test_negative_and_conjugate_bits() -> None:
    executable = build(add(spec(8, dtype=torch.complex64)))
    a, b = torch.randn(8, dtype=torch.complex64), torch.randn(8, dtype=torch.complex64)
    for _ in range(2):
        check(executable, a, b)
        check(executable, a.conj(), b)
        check(executable, a, b.conj())
    real = build(add(spec(8)))
    x = torch.randn(16)[::2].contiguous()
    check(real, x, x)
    check(real, torch._neg_view(x), x)


def test_tensors_that_require_grad(plus: HostExecutable) -> None:
    a, b = torch.randn(32, 32, requires_grad=True), torch.randn(32, 32)
    check(plus, a, b)
    check(plus, a * 2, b)
    check(plus, (a * 2).T, b)


def test_modes_of_torch(plus: HostExecutable) -> None:
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    check(plus, a, b)
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu"), torch.device("cpu")):
        with mode:
            check(plus, a, b)
            check(plus, a.clone(), b.T)


def test_one_tensor_given_twice(plus: HostExecutable) -> None:
    a = torch.randn(32, 32)
    for _ in range(3):
        check(plus, a, a)
        a.add_(1)
    check(plus, a, a.T)


ROUND_TRIP = {dtype: torch.arange(6).view(2, 3) for dtype in DTYPE_NAMES}
ROUND_TRIP[torch.bool] = torch.tensor([[True, False, True], [False, False, True]])
ROUND_TRIP[torch.float8_e8m0fnu] = torch.tensor([[1.0, 2.0, 4.0], [0.5, 0.25, 8.0]])


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (3, 1, 2), (0,), (3, 0, 2)])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_every_dtype_goes_in_and_out(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    of = spec(*shape, dtype=dtype)
    executable = build(program([of], "", ["%a0"], [of]))
    values = ROUND_TRIP[dtype].to(dtype) if dtype is not torch.bool else ROUND_TRIP[dtype]
    count = torch.empty(shape).numel()
    x = values.flatten()[:count].reshape(shape).clone()
    if dtype.is_complex:
        x = x * (1 + 2j)
    (result,) = executable([x])
    assert result.dtype is dtype and result.shape == x.shape and result.stride() == torch.empty(shape).stride()
    assert result.reshape(-1).view(torch.uint8).tolist() == x.reshape(-1).view(torch.uint8).tolist()
    assert x.reshape(-1).view(torch.uint8).numel() == count * x.element_size()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64, torch.float64, torch.complex128])
def test_64_bit_values_survive(dtype: torch.dtype) -> None:
    value = {torch.int64: -(2**62) - 1, torch.uint64: 2**62 + 1, torch.float64: 1 + 2**-50, torch.complex128: complex(1 + 2**-50, -1)}[
        dtype
    ]
    of = spec(3, dtype=dtype)
    executable = build(program([of], "", ["%a0"], [of]))
    assert executable([torch.tensor([value] * 3, dtype=dtype)])[0].tolist() == [value] * 3


def test_bool_logic() -> None:
    of = spec(4, dtype=torch.bool)
    executable = build(program([of, of], f"%0 = stablehlo.and %a0, %a1 : {mlir_type(of)}", ["%0"], [of]))
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    assert executable([a, b])[0].tolist() == [True, False, False, False]
    assert torch.where(executable([a, b])[0], 1, 2).tolist() == [1, 2, 2, 2]


def test_outputs_are_fresh_memory() -> None:
    of = spec(16, 16)
    executable = build(program([of, of], "%c = stablehlo.constant dense<3.0> : tensor<16x16xf32>", ["%a0", "%a0", "%c", "%c"], [of] * 4))
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    kept = a.clone()
    for _ in range(3):
        results = executable([a, b])
        assert all(
            torch.equal(result, expected) for result, expected in zip(results, (a, a, *[torch.full((16, 16), 3.0)] * 2), strict=True)
        )
        pointers = {tensor.data_ptr() for tensor in (*results, a, b)}
        assert len(pointers) == 6
        for i, result in enumerate(results):
            result.fill_(float(i))
        assert [result[0, 0].item() for result in results] == [0.0, 1.0, 2.0, 3.0]
        assert torch.equal(a, kept)


def test_outputs_outlive_the_executable() -> None:
    executable = build(add(spec(128, 128)))
    (result,) = executable([torch.ones(128, 128), torch.ones(128, 128)])
    del executable
    gc.collect()
    other = [torch.full((128, 128), 9.0) for _ in range(10)]
    assert result.sum().item() == 2 * 128 * 128 and len(other) == 10
    result.requires_grad_()
    (result * 3).sum().backward()
    assert result.grad is not None and result.grad[0, 0].item() == 3


def test_donating_programs_read_but_never_write_the_callers_memory() -> None:
    of, t = spec(16, 16), "tensor<16x16xf32>"
    body = f"%0 = stablehlo.add %a0, %a1 : {t}\n%1 = stablehlo.multiply %a1, %a1 : {t}"
    donating = program([of, of], body, ["%0", "%1"], [of, of], {0: "{tf.aliasing_output = 0 : i32}", 1: "{jax.buffer_donor = true}"})
    executable = build(donating)
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    kept = a.clone(), b.clone()
    for _ in range(3):
        total, square = executable([a, b])
        torch.testing.assert_close(total, a + b)
        torch.testing.assert_close(square, b * b)
        total.zero_()
        square.zero_()
        assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])


def test_no_inputs_and_no_outputs() -> None:
    of = spec(2)
    constant = build(program([], "%c = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>", ["%c"], [of]))
    for _ in range(2):
        (result,) = constant([])
        assert result.tolist() == [1.0, 2.0]
        result.zero_()
    nothing = build(program([of], "", [], []))
    assert nothing([torch.ones(2)]) == []


def test_inputs_that_do_not_fit(plus: HostExecutable) -> None:
    good = torch.randn(32, 32)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(good)
    bad = [
        (torch.randn(32, 31), r"\(32, 31\)"),
        (torch.randn(1024), r"\(1024,\)"),
        (good.double(), "float64"),
        (good.to("meta"), "meta"),
        (good.to_sparse(), "sparse"),
        (fake, "FakeTensor"),
        (3.0, "float"),
        (None, "NoneType"),
    ]
    for _ in range(2):
        for tensor, text in bad:
            with pytest.raises(ExecutionError, match=rf"(?s)ND040: input 1 .*\(32, 32\) and dtype torch.float32.*{text}"):
                plus([good, tensor])  # type: ignore[list-item]
        check(plus, good, good.clone())
    for count in (0, 1, 3):
        with pytest.raises(ExecutionError, match=f"takes 2 inputs, {count} were given"):
            plus([good] * count)


def test_functorch_wrappers_are_refused(plus: HostExecutable) -> None:
    good = torch.randn(32, 32)
    check(plus, good, good.clone())

    def call(x: torch.Tensor) -> torch.Tensor:
        return plus([x, good])[0]

    with pytest.raises(ExecutionError, match="no memory"):
        torch.vmap(call)(torch.randn(3, 32, 32))


def test_sixteen_layouts_of_one_input(plus: HostExecutable) -> None:
    b = torch.randn(32, 32)
    bases = [torch.randn(32, 32 + extra) for extra in range(16)]
    for _ in range(3):
        for extra, base in enumerate(bases):
            check(plus, base[:, extra:], b)
            check(plus, base[:, :32], b)


def test_eight_threads_with_their_own_tensors(matmul: HostExecutable) -> None:
    failures: list[str] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        pairs = [(torch.randn(4, 16, generator=generator), torch.randn(16, 8, generator=generator)) for _ in range(3)]
        pairs.append((torch.randn(16, 4, generator=generator).T, pairs[0][1]))
        pairs.append((torch.randn(65, generator=generator)[1:].view(4, 16), pairs[1][1]))
        expected = [a @ b for a, b in pairs]
        barrier.wait()
        for step in range(200):
            i = step % len(pairs)
            if not torch.allclose(matmul(list(pairs[i]))[0], expected[i], atol=1e-5):
                failures.append(f"thread {seed}, step {step}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []


def test_the_pool_of_buffers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron_dynamo.runtime.host._MAX_BUFFERS_PER_SPEC", 4)
    executable = build(add(spec(24, 24)))
    tensors = [torch.randn(24, 24) for _ in range(20)]
    for _ in range(3):
        for a, b in zip(tensors, reversed(tensors), strict=True):
            check(executable, a, b)
    assert 0 < len(executable._pools[0].known) <= 4


def test_memory_that_xla_would_not_view_is_copied_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla.Importer, "is_view", staticmethod(lambda buffer, address: False))
    executable = build(add(spec(20, 20)))
    a, b = torch.zeros(20, 20), torch.zeros(20, 20)
    for _ in range(3):
        check(executable, a, b)
        a.add_(1)
    assert executable._pools[0].known == {}


def test_repeated_calls_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = build(add(spec(40, 40)))
    a, b, c = torch.randn(40, 40), torch.randn(40, 40), torch.randn(40, 40)
    for _ in range(2):
        check(executable, a, b)
        check(executable, c, a)

    def slow(*args: object) -> None:
        raise AssertionError("a slow path was taken")

    monkeypatch.setattr(Admission, "_admit", slow)
    monkeypatch.setattr(xla.Importer, "view", slow)
    check(executable, a, b)
    monkeypatch.setattr(HostExecutable, "_bind", slow)
    check(executable, a, b)
