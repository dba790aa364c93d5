import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

import neuron_dynamo
from neuron_dynamo import custom
from neuron_dynamo.aot_cache import RestorableGraph, aot_fingerprint, uncacheable_reason
from neuron_dynamo.options import Options
from tests.aot_toy import ToyBackend, ToyCompiler, new_process

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    monkeypatch.delenv("TORCH_COMPILE_FORCE_DISABLE_CACHES", raising=False)
    return tmp_path


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def train(model, backend, x):
    """One step through `backend`, its loss and gradients checked against eager's."""
    with new_process():
        x = x.clone().requires_grad_()
        loss = torch.compile(model, backend=backend)(x).square().sum()
        loss.backward()
    grads = [x.grad, *(p.grad for p in model.parameters())]
    model.zero_grad()
    again = x.detach().clone().requires_grad_()
    expected = model(again).square().sum()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    torch.testing.assert_close(grads, [again.grad, *(p.grad for p in model.parameters())], rtol=0, atol=0)
    model.zero_grad()


def infer(function, backend, *args):
    """The value of function(*args) through `backend`, checked against eager's."""
    with new_process(), torch.no_grad():
        value = torch.compile(function, backend=backend)(*args)
        torch.testing.assert_close(value, function(*args), rtol=0, atol=0)


def entries(folders):
    root = folders / "torch" / "aotautograd"
    return sorted(path for path in root.rglob("*") if path.is_file()) if root.exists() else []


def backend(folders, compiler=None, **given):
    return ToyBackend({"cache_dir": folders / "ours", **given}, compiler or ToyCompiler())


def test_second_start_compiles_nothing(folders):
    cold, warm = backend(folders), backend(folders)
    train(mlp(), cold, torch.ones(4, 6))
    assert (cold.compiled, cold.restored) == (2, 0)
    assert counters["aot_autograd"]["autograd_cache_saved"] == 1
    train(mlp(), warm, torch.full((4, 6), 2.0))
    assert (warm.compiled, warm.restored) == (0, 2)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    infer(mlp(), cold, torch.ones(4, 6))
    infer(mlp(), warm, torch.ones(4, 6))
    assert (cold.compiled, warm.compiled, warm.restored) == (3, 0, 3)


def test_new_weights_and_new_values_hit(folders):
    infer(mlp(), backend(folders), torch.ones(4, 6))
    model = mlp()
    with torch.no_grad():
        model[0].weight.mul_(3)
    warm = backend(folders)
    infer(model, warm, torch.zeros(4, 6))
    assert warm.compiled == 0


def test_new_shape_misses(folders):
    infer(mlp(), backend(folders), torch.ones(4, 6))
    warm = backend(folders)
    infer(mlp(), warm, torch.ones(7, 6))
    assert (warm.compiled, warm.restored) == (1, 0)


@pytest.mark.parametrize(
    "given",
    [
        {"target": "trn1"},
        {"target": "trn2"},
        {"target": "trn2", "lnc": 1},
        {"compiler_args": "-O1"},
        {"fallback": "error"},
        {"rng": "eager"},
        {"precision": "narrow"},
        {"compiler": ToyCompiler("2")},
        {"compiler": ToyCompiler(name="other")},
    ],
    ids=str,
)
def test_other_settings_never_share_an_entry(folders, given):
    options = Options.resolve({name: value for name, value in given.items() if name != "compiler"}, environ={})
    assert aot_fingerprint(options, given.get("compiler", ToyCompiler())) != aot_fingerprint(Options(), ToyCompiler())
    infer(mlp(), backend(folders), torch.ones(4, 6))
    other = backend(folders, **given)
    infer(mlp(), other, torch.ones(4, 6))
    assert (other.compiled, other.restore_calls) == (1, 0)
    again = backend(folders, **given)
    infer(mlp(), again, torch.ones(4, 6))
    assert again.compiled == 0


def test_lnc_is_part_of_the_fingerprint():
    prints = {aot_fingerprint(Options(target="trn2", lnc=lnc), ToyCompiler()) for lnc in (None, 1, 2)}
    assert len(prints) == 2  # None is 2


def test_places_and_names_are_not_part_of_the_fingerprint(tmp_path):
    plain = aot_fingerprint(Options(), ToyCompiler())
    for given in ({"cache_dir": str(tmp_path)}, {"model_name": "m"}, {"cache": "require"}):
        assert aot_fingerprint(Options(**given), ToyCompiler()) == plain


def test_the_users_own_cache_tag_still_counts(folders):
    infer(mlp(), backend(folders), torch.ones(4, 6))
    other = backend(folders)
    with torch.compiler.config.patch(cache_key_tag="theirs"):
        infer(mlp(), other, torch.ones(4, 6))
        assert torch.compiler.config.cache_key_tag == "theirs"
    assert other.compiled == 1


@pytest.mark.parametrize("register", ["lowering", "decomposition", "kernel"])
def test_users_code_for_an_op_of_pytorchs_is_never_stale(folders, register):
    """What the code reads may change, and no key sees it."""
    op = torch.ops.aten._standard_gamma.default
    library = torch.library.Library("aten", "IMPL")
    with contextlib.ExitStack() as stack:
        if register == "lowering":
            neuron_dynamo.register_lowering(op)(lambda b, x, generator: x)
        elif register == "decomposition":
            neuron_dynamo.register_decomposition(op)(lambda x, generator=None: x)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch tells of the kernel that it replaces
                library.impl("hardswish", lambda x: x * 2, "AutogradCPU")
            stack.callback(library._destroy)
        stack.callback(custom.unregister, op)
        for _ in range(2):
            made = backend(folders)
            infer(mlp(), made, torch.ones(4, 6))
            assert (made.compiled, made.restored) == (1, 0)
    for expected in (1, 0):
        made = backend(folders)
        infer(mlp(), made, torch.ones(4, 6))
        assert made.compiled == expected


def test_entry_under_a_foreign_fingerprint_is_a_miss(folders):
    """Even if PyTorch's key knew nothing of ours, the check on load would stand in the way."""
    other = backend(folders, precision="narrow")
    with tag_ignored():
        infer(mlp(), backend(folders), torch.ones(4, 6))
        infer(mlp(), other, torch.ones(4, 6))
        assert counters["aot_autograd"]["autograd_cache_miss"] == 1
    assert (other.compiled, other.restored, other.restore_calls) == (1, 0, 0)


@contextlib.contextmanager
def tag_ignored():
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCacheDetails

    original = AOTAutogradCacheDetails.__init__

    def without_tag(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.cache_key_tag = ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AOTAutogradCacheDetails, "__init__", without_tag)
        yield


def test_our_store_wiped(folders):
    train(mlp(), backend(folders), torch.ones(4, 6))
    shutil.rmtree(folders / "ours")
    rebuilt = backend(folders)
    train(mlp(), rebuilt, torch.ones(4, 6))
    assert (rebuilt.compiled, rebuilt.restored) == (2, 0)
    assert counters["aot_autograd"]["autograd_cache_miss"] == 1
    assert counters["aot_autograd"]["autograd_cache_bypass"] == 0
    warm = backend(folders)
    train(mlp(), warm, torch.ones(4, 6))
    assert (warm.compiled, warm.restored) == (0, 2)


def test_only_the_backward_gone_counts_as_nothing_restored(folders):
    cold = backend(folders)
    train(mlp(), cold, torch.ones(4, 6))
    payloads = {path: path.read_bytes() for path in (folders / "ours" / "v1").rglob("artifact.bin")}
    assert len(payloads) == 2
    [backward] = [path for path, payload in payloads.items() if b"tangents" in payload]
    shutil.rmtree(backward.parent)
    rebuilt = backend(folders)
    train(mlp(), rebuilt, torch.ones(4, 6))
    assert (rebuilt.compiled, rebuilt.restored, rebuilt.restore_calls) == (2, 0, 2)


def test_pytorchs_entry_wiped(folders):
    train(mlp(), backend(folders), torch.ones(4, 6))
    shutil.rmtree(folders / "torch")
    rebuilt = backend(folders)
    train(mlp(), rebuilt, torch.ones(4, 6))
    assert (rebuilt.compiled, rebuilt.restored) == (2, 0)
    warm = backend(folders)
    train(mlp(), warm, torch.ones(4, 6))
    assert (warm.compiled, warm.restored) == (0, 2)


@pytest.mark.parametrize("damage", ["truncated", "empty", "noise", "state"])
def test_pytorchs_entry_corrupt(folders, damage):
    train(mlp(), backend(folders), torch.ones(4, 6))
    [entry] = entries(folders)
    data = entry.read_bytes()
    damaged = {
        "truncated": data[: len(data) // 2],
        "empty": b"",
        "noise": b"\x00" * 100,
        "state": data.replace(b'{"format": 1', b'{"format": ,'),
    }[damage]
    assert damaged != data
    entry.write_bytes(damaged)
    rebuilt = backend(folders)
    train(mlp(), rebuilt, torch.ones(4, 6))
    assert (rebuilt.compiled, rebuilt.restored) == (2, 0)


def test_error_while_restoring_does_not_reach_the_user(folders, caplog):
    train(mlp(), backend(folders), torch.ones(4, 6))
    broken = backend(folders)

    def restore(state, options):
        raise ZeroDivisionError("a bug")

    broken.restore = restore
    train(mlp(), broken, torch.ones(4, 6))
    assert (broken.compiled, broken.restored) == (2, 0)
    assert "graph not restored: a bug" in caplog.text


def test_off_neither_reads_nor_writes(folders):
    off = backend(folders, cache="off")
    train(mlp(), off, torch.ones(4, 6))
    assert (off.compiled, entries(folders)) == (2, [])
    train(mlp(), backend(folders), torch.ones(4, 6))
    again = backend(folders, cache="off")
    train(mlp(), again, torch.ones(4, 6))
    assert (again.compiled, again.restore_calls) == (2, 0)


@pytest.mark.parametrize("mode", ["readonly", "require"])
def test_readonly_and_require_read_but_never_write(folders, mode):
    if mode == "readonly":
        (folders / "ours").mkdir()
    train(mlp(), backend(folders, cache=mode), torch.ones(4, 6))
    assert entries(folders) == []
    assert counters["aot_autograd"]["autograd_cache_saved"] == 0
    train(mlp(), backend(folders), torch.ones(4, 6))
    before = {path: path.read_bytes() for path in entries(folders)}
    warm = backend(folders, cache=mode)
    train(mlp(), warm, torch.ones(4, 6))
    assert (warm.compiled, warm.restored) == (0, 2)
    assert {path: path.read_bytes() for path in entries(folders)} == before


def test_dump_dir_wants_every_stage(folders):
    infer(mlp(), backend(folders), torch.ones(4, 6))
    dumping = backend(folders, dump_dir=folders / "dump")
    infer(mlp(), dumping, torch.ones(4, 6))
    assert (dumping.compiled, dumping.restore_calls) == (1, 0)


def test_caches_that_the_user_switched_off_stay_off(folders):
    with torch.compiler.config.patch(force_disable_caches=True):
        train(mlp(), backend(folders), torch.ones(4, 6))
    with torch._functorch.config.patch(enable_autograd_cache=False):
        train(mlp(), backend(folders), torch.ones(4, 6))
    assert entries(folders) == []


def test_graph_without_description_works_uncached(folders):
    for _ in range(2):
        symbolic = backend(folders)
        with new_process(), torch.no_grad():
            compiled = torch.compile(lambda x: x * 2 + x.shape[0], backend=symbolic, dynamic=True)
            for size in (3, 5):
                torch.testing.assert_close(compiled(torch.ones(size)), torch.full((size,), 2.0 + size))
        assert (symbolic.compiled, symbolic.restored) == (1, 0)
    assert entries(folders) == []
    assert counters["aot_autograd"]["autograd_cache_bypass"] == 1


@torch.library.custom_op("aot_cache_test::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE[0]


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


SCALE = [2.0]


scaled.register_autograd(lambda ctx, grad: grad * SCALE[0])


@torch._dynamo.allow_in_graph
def scale_in_graph(x):
    return x * SCALE[0]


def call_custom_op(x):
    return torch.ops.aot_cache_test.scaled(x) + 1


def call_in_graph(x):
    return scale_in_graph(x) + 1


def call_checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda y: scale_in_graph(y).sin(), x, use_reentrant=False)


@pytest.mark.parametrize("function", [call_custom_op, call_in_graph, call_checkpointed])
def test_code_that_the_key_cannot_see_is_never_stale(folders, monkeypatch, function):
    for scale in (2.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", [scale])
        model = torch.nn.Module()
        model.forward = function
        cold = backend(folders)
        train(model, cold, torch.ones(4))
        assert cold.restored == 0
    assert entries(folders) == []


def test_checkpoint_of_plain_ops_is_restored(folders):
    model = mlp()

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    train(Checkpointed(), backend(folders), torch.ones(4, 6))
    warm = backend(folders)
    train(Checkpointed(), warm, torch.ones(4, 6))
    assert (warm.compiled, warm.restored) == (0, 2)


def test_tensor_constants_and_modules_are_uncacheable():
    def graph_with(op, target):
        root = torch.nn.Module()
        root.held = torch.nn.ReLU() if op == "call_module" else torch.ones(2)
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["example_value"] = torch.ones(2)
        value = graph.create_node(op, target, (x,) if op == "call_module" else ())
        graph.output(value)
        return torch.fx.GraphModule(root, graph)

    plain = graph_with("get_attr", "held")
    assert uncacheable_reason(plain) is None  # FX makes it a buffer, and AOTAutograd an input
    del plain._buffers["held"]
    plain.__dict__["held"] = torch.ones(2)
    assert uncacheable_reason(plain) == "it holds the tensor constant held"
    assert uncacheable_reason(graph_with("call_module", "held")) == "it calls module held"
    outer = torch.nn.Module()
    outer.body = graph_with("get_attr", "held")
    graph = torch.fx.Graph()
    graph.output(graph.get_attr("body"))
    assert uncacheable_reason(torch.fx.GraphModule(outer, graph)) == "it holds the tensor constant held"


def test_mutation_and_views_survive_a_warm_start(folders):
    def function(x, buffer):
        buffer.add_(x)
        return x.view(2, 2), buffer * 2, x.t() if x.dim() == 2 else x

    for warm in (False, True):
        toy = backend(folders)
        with new_process(), torch.no_grad():
            x, buffer = torch.arange(4.0), torch.ones(4)
            view, doubled, same = torch.compile(function, backend=toy)(x, buffer)
        assert toy.compiled == (0 if warm else 1)
        assert torch.equal(buffer, torch.tensor([1.0, 2.0, 3.0, 4.0])) and torch.equal(doubled, buffer * 2)
        assert view._base is x or view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert same is x


def test_use_of_inductor_in_the_same_process_does_not_matter(folders):
    train(mlp(), backend(folders), torch.ones(4, 6))
    from torch._inductor.codegen.common import init_backend_registration

    init_backend_registration()
    warm = backend(folders)
    train(mlp(), warm, torch.ones(4, 6))
    assert (warm.compiled, warm.restored) == (0, 2)


def test_call_goes_straight_to_the_live_graph():
    frames = []

    class Live:
        def __call__(self, inputs):
            frame = sys._getframe(1)
            frames.append(frame.f_code.co_name)
            return inputs

        def to_state(self):
            return {}

    assert RestorableGraph(Live())([1]) == [1]
    assert frames == ["test_call_goes_straight_to_the_live_graph"]


JOB = """
    import json, sys
    import torch
    from torch._dynamo.utils import counters
    from tests.aot_toy import ToyBackend

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    torch.manual_seed(0)
    model, x = Net(), torch.ones(4, 6)
    backend = ToyBackend({"cache_dir": sys.argv[1]})
    loss = torch.compile(model, backend=backend)(x).square().sum()
    loss.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    expected = model(x).square().sum()
    expected.backward()
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, grads, [p.grad for p in model.parameters()]))
    state = counters["aot_autograd"]
    hits, misses = state["autograd_cache_hit"], state["autograd_cache_miss"]
    heavy = [name for name in ("torch_mlir", "torch._inductor.lowering", "torch._inductor.codegen.triton") if name in sys.modules]
    print(json.dumps([backend.compiled, backend.restored, hits, misses, heavy]))
"""


def test_second_process_from_another_file_line_and_hash_seed(tmp_path):
    results = []
    for number, (folder, prefix) in enumerate((("here", ""), ("there/deep", "# a comment\n\n\nunused = 1\n"))):
        script = tmp_path / folder / f"job{number}.py"
        script.parent.mkdir(parents=True)
        script.write_text(prefix + textwrap.dedent(JOB))
        run = subprocess.run(
            [sys.executable, script, tmp_path / "ours"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTHONHASHSEED": str(number + 1),
                "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"),
            },
            cwd=script.parent,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        results.append(json.loads(run.stdout))
    assert results == [[2, 0, 0, 1, []], [0, 2, 1, 0, []]]
