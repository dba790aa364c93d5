"""Check lowering rules against eager PyTorch: `check(fn, *args)` traces, lowers, runs on the host target and compares.

As a program: `python -m tests.lowering.opcheck OP [--dtype float32] [--backward] [--samples N] [-v]` runs OpInfo samples of an op.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from neuron_dynamo.lowering import registry
from neuron_dynamo.lowering.pipeline import lower, stablehlo_text
from neuron_dynamo.lowering.program import Program
from neuron_dynamo.passes.checks import CHECKS
from neuron_dynamo.passes.decompositions import decomposition_table
from neuron_dynamo.target import get_target


def trace(fn: Callable[..., Any], tensors: list[torch.Tensor]) -> torch.fx.GraphModule:
    """fn over flat tensors, functionalised and decomposed, with a tuple of tensor nodes as output."""
    # First without functionalisation, inside which autograd cannot be started.
    plain = make_fx(fn, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    functional = torch.func.functionalize(plain, remove="mutations")
    gm = make_fx(functional, decomposition_table=decomposition_table(), tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    for node in [n for n in gm.graph.nodes if n.target in CHECKS]:
        gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def over_tensors(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., tuple[torch.Tensor, ...]], list[torch.Tensor]]:
    """fn as a function of the tensors in args (nested) alone, that returns the tensors of its result; and those tensors, detached."""
    leaves, spec = pytree.tree_flatten(args)
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def flat(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for i, tensor in zip(where, given, strict=True):
            filled[i] = tensor
        results = pytree.tree_leaves(fn(*pytree.tree_unflatten(filled, spec)))
        return tuple(r for r in results if isinstance(r, torch.Tensor))

    return flat, [leaves[i].detach() for i in where]


def check(
    fn: Callable[..., Any], *args: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = True, verbose: bool = False
) -> Program:
    """Run fn(*args) eagerly and through lowering; assert_close on every tensor result. Returns the program.

    Every tensor in args (nested) is an input of the program. rtol and atol default to torch.testing's.
    """
    flat, tensors = over_tensors(fn, args)
    expected = flat(*[t.clone() for t in tensors])
    gm = trace(flat, tensors)
    if verbose:
        print(gm.graph)
    program = lower(gm.graph, get_target("host"))
    if verbose:
        print(stablehlo_text(program.stablehlo))
    actual = run(program, tensors)
    torch.testing.assert_close(tuple(actual), expected, rtol=rtol, atol=atol, equal_nan=equal_nan)
    return program


def check_text(fn: Callable[..., Any], *args: Any, rtol: float | None = None, atol: float | None = None) -> str:
    """check, for tests that look at the StableHLO text, which it returns."""
    return stablehlo_text(check(fn, *args, rtol=rtol, atol=atol).stablehlo)


def run(program: Program, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Compile and run a Program on the host target."""
    try:
        from neuron_dynamo.compilers.host import HostCompiler
    except ImportError:
        return _run_plain(program, tensors)
    compiler = HostCompiler()
    return compiler.load(compiler.compile(program), program.signature)(list(tensors))


_client: Any = None


def _run_plain(program: Program, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    global _client
    from jaxlib import _jax
    from jaxlib import xla_client as xc
    from torch.utils.dlpack import from_dlpack, to_dlpack

    if _client is None:
        _client = xc.make_cpu_client(asynchronous=False)
    device = _client.local_devices()[0]
    options = xc.CompileOptions()
    options.env_option_overrides = [("xla_allow_excess_precision", False)]
    exe = _client.compile_and_load(program.stablehlo, xc.DeviceList((device,)), options)
    buffers = [_jax.dlpack_managed_tensor_to_buffer(to_dlpack(a.detach().contiguous().clone()), device, None) for a in tensors]
    outs = exe.execute_sharded(buffers).disassemble_into_single_device_arrays()
    return [from_dlpack(_jax.buffer_to_dlpack_managed_tensor(o[0], None)) for o in outs]


def _brief(sample: Any) -> str:
    """A sample with tensors shown as dtype and shape."""

    def show(leaf: Any) -> Any:
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else leaf

    return str(pytree.tree_map(show, (sample.input, sample.args, sample.kwargs)))[:400]


def opinfo(name: str, dtype: torch.dtype, backward: bool, samples: int, verbose: bool) -> dict[str, int]:
    """Run OpInfo samples of `name`; prints failures; returns counts by outcome."""
    from torch.testing._internal.common_methods_invocations import op_db

    counts: dict[str, int] = {}
    for info in (i for i in op_db if i.name == name or f"{i.name}.{i.variant_test_name}" == name):
        if dtype not in (info.backward_dtypes if backward else info.dtypes):
            continue
        for number, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=backward)):
            if number >= samples:
                break

            def fn(*tensors: Any, info: Any = info) -> Any:
                *given, named = tensors
                result = info(*given, **named)
                if not backward:
                    return result
                outs = [r for r in pytree.tree_leaves(result) if isinstance(r, torch.Tensor) and r.requires_grad]
                wanted = [t for t in pytree.tree_leaves(tensors) if isinstance(t, torch.Tensor) and t.requires_grad]
                return torch.autograd.grad(outs, wanted, [torch.ones_like(o) for o in outs], allow_unused=True)

            args = (sample.input, *sample.args, sample.kwargs)
            if backward:
                inner = fn

                def fn(*tensors: Any, inner: Any = inner, like: Any = args) -> Any:
                    marks = [t.requires_grad if isinstance(t, torch.Tensor) else False for t in pytree.tree_leaves(like)]
                    leaves, spec = pytree.tree_flatten(tensors)
                    leaves = [
                        t.detach().requires_grad_(m) if isinstance(t, torch.Tensor) else t for t, m in zip(leaves, marks, strict=True)
                    ]
                    return inner(*pytree.tree_unflatten(leaves, spec))

            try:
                check(fn, *args, verbose=verbose)
                outcome = "ok"
            except AssertionError as error:
                outcome = "WRONG"
                print(f"{name} #{number} {_brief(sample)}\n  WRONG: {str(error)[:600]}")
            except Exception as error:
                outcome = f"error {type(error).__name__}"
                print(f"{name} #{number} {_brief(sample)}\n  {outcome}: {str(error)[:600]}")
                if verbose:
                    traceback.print_exc()
            counts[outcome] = counts.get(outcome, 0) + 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("ops", nargs="+")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    registry.load()
    for op in arguments.ops:
        print(op, opinfo(op, getattr(torch, arguments.dtype), arguments.backward, arguments.samples, arguments.verbose), flush=True)
    sys.exit(0)
