"""The contract with jaxlib: every private behaviour that neuron_dynamo.xla relies on."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from neuron_dynamo import xla
from neuron_dynamo.errors import CompilerError
from neuron_dynamo.lowering.program import DTYPE_NAMES, STABLEHLO_VERSION
from tests.host_programs import artifact, build, program, spec

ADD = artifact(
    "func.func @main(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> tensor<4x4xf32> {"
    " %0 = stablehlo.add %a, %b : tensor<4x4xf32> return %0 : tensor<4x4xf32> }"
)


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run([sys.executable, *argv], env={**clean, **environ}, capture_output=True, text=True, timeout=120, check=False)


def test_versions() -> None:
    assert xla.jaxlib_version() == "0.10.2"
    ours, theirs = (tuple(map(int, text.split("."))) for text in (STABLEHLO_VERSION, xla.stablehlo_version()))
    assert ours <= theirs, "jaxlib cannot read the portable artifacts that we write"


def test_importing_the_package_does_not_load_jaxlib() -> None:
    result = run("-c", "import sys, neuron_dynamo.xla, neuron_dynamo.compilers.host; print('jaxlib' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr


@pytest.mark.parametrize("level", [None, "0"])
def test_the_client_prints_nothing_unless_asked(level: str | None) -> None:
    code = "import os; from neuron_dynamo import xla; xla.Importer((1,), 'float32'); print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'))"
    result = run("-c", code, **({} if level is None else {"TF_CPP_MIN_LOG_LEVEL": level}))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(level)
    assert ("PjRt-IFRT" in result.stderr) == (level == "0")


def test_neither_compiling_nor_calling_looks_for_the_jax_package() -> None:
    code = """
import sys, torch
from tests.host_programs import add, build, spec
looked = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "jax" or name.startswith("jax."):
            looked.append(name)
executable = build(add(spec(8, 8)))
a, b = torch.ones(8, 8), torch.ones(8, 8)
executable([a, b])
sys.meta_path.insert(0, Finder())
c = torch.ones(8, 8)
executable([a, c])
executable([c.T, b])
print(looked)
"""
    result = run("-c", code, PYTHONPATH=os.pathsep.join(["."]))
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_hlo_of_a_portable_artifact() -> None:
    text = xla.hlo_text(ADD)
    assert text.startswith("HloModule main") and "f32[4,4]{1,0} add(" in text
    assert b"main" in xla.hlo_proto(ADD)
    optimized = xla.optimized_hlo_text(xla.compile(ADD))
    assert optimized.startswith("HloModule main, is_scheduled=true")


@pytest.mark.parametrize("bad", [b"", b"no module", ADD[: len(ADD) // 2], b"ML\xefR" + bytes(60), b"func.func @main() { return %0 }"])
def test_bad_stablehlo_is_an_error(bad: bytes) -> None:
    for function in (xla.compile, xla.hlo_text, xla.hlo_proto):
        with pytest.raises(CompilerError):
            function(bad)


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."), True),
        (MemoryError(), True),
        (RuntimeError("INVALID_ARGUMENT: RESOURCE_EXHAUSTED is no op"), False),
        (RuntimeError("INTERNAL: bug"), False),
    ],
)
def test_want_of_memory_says_nothing_about_the_program(error: Exception, transient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(client: object) -> None:
        raise error

    xla.compile(ADD)
    monkeypatch.setattr(xla, "_compile_options", fail)
    with pytest.raises(CompilerError) as caught:
        xla.compile(ADD)
    assert caught.value.transient is transient


def test_unknown_custom_call_is_an_error() -> None:
    call = "%0 = stablehlo.custom_call @nope(%a) : (tensor<f32>) -> tensor<f32>"
    module = f"func.func @main(%a: tensor<f32>) -> tensor<f32> {{ {call} return %0 : tensor<f32> }}"
    with pytest.raises(CompilerError, match="nope"):
        xla.compile(artifact(module))


def test_serialised_executables_load_and_bad_bytes_are_an_error() -> None:
    data = xla.serialize(xla.compile(ADD))
    assert xla.optimized_hlo_text(xla.deserialize(data)).startswith("HloModule main")
    for bad in (b"", b"garbage", data[: len(data) // 2]):
        with pytest.raises(CompilerError):
            xla.deserialize(bad)


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (64, 64)])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_views_are_zero_copy_exactly_at_the_alignment(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    importer = xla.Importer(shape, DTYPE_NAMES[dtype])
    memory = torch.zeros(100_000, dtype=torch.uint8)
    start = memory.data_ptr() + -memory.data_ptr() % xla.ALIGNMENT
    assert importer.is_view(importer.view(start), start)
    assert importer.is_view(importer.view(start + xla.ALIGNMENT), start + xla.ALIGNMENT)
    assert not importer.is_view(importer.copy(start), start)
    assert not importer.is_view(importer.copy(start + 16), start + 16)


def test_views_show_later_writes_and_copies_do_not() -> None:
    memory = np.zeros(1024, np.float32)
    offset = -memory.ctypes.data % xla.ALIGNMENT // 4
    memory = memory[offset : offset + 4]
    importer = xla.Importer((4,), "float32")
    view, copy = importer.view(memory.ctypes.data), importer.copy(memory.ctypes.data)
    memory[:] = 7
    assert np.asarray(view).tolist() == [7, 7, 7, 7]
    assert np.asarray(copy).tolist() == [0, 0, 0, 0]


def test_views_do_not_hold_memory() -> None:
    import gc
    import weakref

    tensor = torch.zeros(64, 64)
    alive = weakref.ref(tensor.untyped_storage())
    view = xla.Importer((64, 64), "float32").view(tensor.data_ptr())
    del tensor
    gc.collect()
    assert alive() is None
    del view


def test_64_bit_types_are_not_narrowed() -> None:
    for name, value in (("int64", 2**40 + 1), ("uint64", 2**63 + 1), ("float64", 1 + 2**-40)):
        memory = np.full(16, value, name)
        assert np.asarray(xla.Importer((16,), name).copy(memory.ctypes.data)).tolist() == [value] * 16


def test_f32_to_bf16_to_f32_rounds() -> None:
    wide, narrow = "tensor<4096xf32>", "tensor<4096xbf16>"
    body = f"%0 = stablehlo.convert %a0 : ({wide}) -> {narrow}\n%1 = stablehlo.convert %0 : ({narrow}) -> {wide}"
    executable = build(program([spec(4096)], body, ["%1"], [spec(4096)]))
    x = torch.randn(4096)
    assert torch.equal(executable([x])[0], x.bfloat16().float())
    assert not torch.equal(x.bfloat16().float(), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_chains_round_after_every_op(dtype: torch.dtype) -> None:
    of = spec(64, 128, dtype=dtype)
    t = f"tensor<64x128x{'bf16' if dtype is torch.bfloat16 else 'f16'}>"
    body = f"""
      %0 = stablehlo.multiply %a0, %a1 : {t}
      %1 = stablehlo.multiply %a2, %a3 : {t}
      %2 = stablehlo.add %0, %1 : {t}
      %3 = stablehlo.divide %2, %a0 : {t}"""
    executable = build(program([of] * 4, body, ["%3"], [of]))
    x, cos, rotated, sin = (torch.randn(64, 128).to(dtype) for _ in range(4))
    expected = (x * cos + rotated * sin) / x
    assert torch.equal(executable([x, cos, rotated, sin])[0], expected)
    once = ((x.float() * cos.float() + rotated.float() * sin.float()) / x.float()).to(dtype)
    assert not torch.equal(once, expected), "the inputs would not show excess precision"


def test_nan_and_infinity_are_honoured() -> None:
    t = "tensor<4xf32>"
    body = f"%0 = stablehlo.subtract %a0, %a0 : {t}\n%1 = stablehlo.maximum %a0, %a1 : {t}\n%2 = stablehlo.divide %a0, %a1 : {t}"
    executable = build(program([spec(4)] * 2, body, ["%0", "%1", "%2"], [spec(4)] * 3))
    a, b = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0]), torch.tensor([1.0, float("nan"), 0.0, -0.0])
    for result, expected in zip(executable([a, b]), (a - a, torch.maximum(a, b), a / b), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_denormals_flush_inside_and_torch_keeps_its_own_mode() -> None:
    executable = build(program([spec(1)] * 2, "%0 = stablehlo.multiply %a0, %a1 : tensor<1xf32>", ["%0"], [spec(1)]))
    tiny, half = torch.tensor([1e-38]), torch.tensor([0.5])
    assert executable([tiny, half])[0].item() == 0
    assert (tiny * half).item() > 0
    big = torch.full((100_000,), 1e-38)
    assert torch.count_nonzero(big * 0.5).item() == 100_000


def test_donated_parameters_are_found() -> None:
    t = "tensor<8xf32>"
    attributes = {0: "{tf.aliasing_output = 0 : i32}", 2: "{jax.buffer_donor = true}"}
    donating = program(
        [spec(8)] * 4, f"%0 = stablehlo.add %a0, %a1 : {t}\n%1 = stablehlo.add %a2, %a3 : {t}", ["%0", "%1"], [spec(8)] * 2, attributes
    )
    assert set(xla.donated_parameters(xla.compile(donating.stablehlo))) >= {0, 2}
    assert xla.donated_parameters(xla.compile(ADD)) == ()


CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
flags\t\t: fpu sse2 avx2 arat fma ssbd

processor\t: 1
model\t: 9
flags\t: avx512f
"""


def test_cpu_features() -> None:
    cpu = xla.parse_cpuinfo(CPUINFO, "x86_64")
    assert (cpu.name, cpu.flags) == ("x86_64-AuthenticAMD-25-1", ("avx2", "fma", "sse2"))
    other_kernel = xla.parse_cpuinfo(CPUINFO.replace("arat ", "").replace("fma ssbd", "fma ibpb"), "x86_64")
    more = xla.parse_cpuinfo(CPUINFO.replace("avx2", "avx2 avx512f"), "x86_64")
    assert other_kernel.digest == cpu.digest != more.digest
    arm = xla.parse_cpuinfo("processor : 0\nFeatures : fp asimd sve evtstrm\nCPU implementer : 0x41\nCPU part : 0xd40\n", "aarch64")
    assert (arm.name, arm.flags) == ("aarch64-0x41-0xd40", ("asimd", "fp", "sve"))
    assert xla.cpu_features().name and len(xla.cpu_features().digest) == 12


def test_code_flags_hold_ours_and_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    ours = xla.code_flags()
    assert "--xla_allow_excess_precision=false" in ours.split()
    monkeypatch.setenv("XLA_FLAGS", "  --xla_cpu_max_isa=AVX2 ")
    assert xla.code_flags() == f"{ours} --xla_cpu_max_isa=AVX2"
