"""The entry point: what `torch.compile(model, backend="neuron")` calls."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from neuron_dynamo.ctc import make_ctc_loss_traceable
from neuron_dynamo.errors import DeviceError, ModeError
from neuron_dynamo.names import warn_of_rivals
from neuron_dynamo.nested import make_attention_traceable
from neuron_dynamo.options import Options

# Here, since Dynamo traces before it calls the backend.
make_attention_traceable()
make_ctc_loss_traceable()


def neuron(gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None) -> Any:
    """Compile Dynamo's graph: AOTAutograd traces forward, backward and inference graphs, and each goes through compile.py.

    Raises OptionError for bad options, ModeError for any mode, DeviceError for tensors that are not on the CPU.
    """
    if mode not in (None, "default"):
        raise ModeError(
            f"mode={mode!r} is Inductor's: this backend has no autotuning and no CUDA graphs to switch",
            remedy="leave mode out; see the options table for what can be set",
        )
    warn_of_rivals()
    resolved = Options.resolve(options)
    _check_devices(example_inputs)
    return _compile(gm, list(example_inputs), resolved)


def _compile(gm: GraphModule, example_inputs: list[Any], options: Options) -> Any:
    from neuron_dynamo.aot_cache import aot_cache_config, aot_compiler, aot_fingerprint
    from neuron_dynamo.collecting import collecting
    from neuron_dynamo.compilers import compiler_for
    from neuron_dynamo.passes.inline import inline_regions
    from neuron_dynamo.passes.recurrent import open_recurrent
    from neuron_dynamo.passes.table import LazyTable
    from neuron_dynamo.passes.wide_gradients import widen_gradients
    from neuron_dynamo.recording import name_real_types, recording
    from neuron_dynamo.shadowed import set_aside
    from neuron_dynamo.stored import admit, not_restored, restore
    from neuron_dynamo.timing import backend_call, own_work

    def compiler(kind: str) -> Any:
        def run(graph: GraphModule, inputs: Sequence[Any]) -> Any:
            from neuron_dynamo.compile import compile_graph, on_host
            from neuron_dynamo.dynamic import compile_any
            from neuron_dynamo.lowering.support import why_not_native
            from neuron_dynamo.passes.counters import tensor_counters

            visible = _visible_outputs(graph, kind)
            _keep_saved_tensors()
            tensor_counters(graph)

            def static(graph: GraphModule, everything: bool) -> Any:
                return compile_graph(graph, kind, options, sys.maxsize if everything else visible)

            with own_work():
                return compile_any(
                    graph,
                    static,
                    lambda node, reason: on_host(node, reason, kind, options),
                    lambda node: why_not_native(node, options.resolved_target),
                    {"kind": kind, "visible": visible},
                )

        return aot_compiler(run)

    def partition(joint: GraphModule, inputs: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
        from neuron_dynamo.passes.joint import partition_joint

        return partition_joint(joint, inputs, options.rng, **kwargs)

    spool = recording()
    if spool is not None:
        options = dataclasses.replace(options, cache="on")  # it is to be warm whatever the job is allowed to do with it
        if spool.fake:
            name_real_types(gm, example_inputs)
    inline_regions(gm)
    open_recurrent(gm)
    widen_gradients(gm)
    if collecting() is None:
        fingerprint = aot_fingerprint(options, compiler_for(options))
        settings = aot_cache_config(options, fingerprint, own_work()(restore if spool is None else not_restored), gm)
    else:  # an inspection wants every graph lowered, so none restored, and for targets too that nothing here compiles for
        settings = aot_cache_config(dataclasses.replace(options, cache="off"), "", restore, gm)
    # What this setting means to AOTAutograd: a draw that nothing reads is kept, because it advances the generator.
    keep_draws = torch._inductor.config.patch(fallback_random=options.rng == "eager")
    # Tokens that order effects are made inside the graph: AOTAutogradCache restores no graph that takes them as inputs.
    inner_tokens = torch._functorch.config.patch(unlift_effect_tokens=True)
    with backend_call(), set_aside(), keep_draws, inner_tokens, settings as session:
        compiled = aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=LazyTable(),
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )(gm, example_inputs)
    for graph in session.restored:
        admit(graph, options)
    return compiled


def _visible_outputs(graph: GraphModule, kind: str) -> int:
    """How many of the graph's outputs, from the first, reach the user (or autograd) rather than the backward graph."""
    (output,) = (n for n in graph.graph.nodes if n.op == "output")
    context = torch._guards.TracingContext.try_get()
    if kind == "forward" and context is not None and context.fw_metadata is not None:
        return int(context.fw_metadata.num_forward)
    return len(output.args[0])


def _keep_saved_tensors() -> None:
    """Let `backward(retain_graph=True)` be.

    AOTAutograd lists the saved tensors that a backward graph may overwrite ("donated buffers") and then refuses that call. No program
    of ours overwrites one. The list is emptied in place: AOTAutograd holds it twice, and takes a missing one for a full one.
    """
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None and context.fw_metadata.bw_donated_idxs:
        context.fw_metadata.bw_donated_idxs.clear()


def _check_devices(example_inputs: Sequence[Any]) -> None:
    for number, value in enumerate(example_inputs):
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise DeviceError(
                f"input {number} of the graph is on device {value.device}",
                remedy="this backend takes CPU tensors: it has no device type of its own; move the model and its inputs to the CPU",
            )
