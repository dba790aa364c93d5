"""Eligibility for PyTorch's AOTAutogradCache: a warm start neither traces AOT nor lowers.

PyTorch keeps its entry (the wrappers around forward and backward) in its own directory and pickles our compiled objects
into it. What we let it pickle is one JSON text per graph: a key and a signature, from which `restore` loads the artifact out
of our own store. A graph that cannot be restored, for whatever reason, is a miss there: it is traced and lowered again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol
from unittest.mock import patch

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import (
    BypassAOTAutogradCache,
    FXGraphCacheMiss,
    check_node_safe,
    should_use_local_autograd_cache,
)
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor import codecache
from torch._inductor.output_code import OutputCode

from neuron_dynamo import custom
from neuron_dynamo.cache.key import program_key
from neuron_dynamo.cache.toolchain import package_digest
from neuron_dynamo.compilers.base import Compiler
from neuron_dynamo.errors import NeuronDynamoError
from neuron_dynamo.options import Options

_STATE_FORMAT = 1
_KNOWN_NAMESPACES = frozenset({"aten", "prims", "prim", "_c10d_functional", "c10d_functional", "_dtensor"})

_KERNELS = frozenset(
    {
        "CPU",
        "AutogradCPU",
        "Autograd",
        "AutocastCPU",
        "CompositeImplicitAutograd",
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
    }
)
"""Dispatch keys of what computes an op here. PyTorch itself gives its ops kernels in Python for others alone: Meta, FuncTorchBatched ..."""

_log = logging.getLogger(__name__)


class NotRestorable(Exception):
    """A compiled graph has no JSON description, or its description leads to nothing any more; the text says why."""


class LiveGraph(Protocol):
    """A compiled graph: boxed calling convention (it may clear `inputs`), and a JSON description of itself.

    `to_state` raises NotRestorable for a graph that cannot be rebuilt from such a description in another process.
    """

    def __call__(self, inputs: list[Any]) -> Sequence[Any]: ...

    def to_state(self) -> dict[str, Any]: ...


Restore = Callable[[dict[str, Any], Options], LiveGraph]
"""Inverse of `LiveGraph.to_state`; raises NotRestorable or a NeuronDynamoError where the artifact is gone or does not load."""
CompileGraph = Callable[[torch.fx.GraphModule, Sequence[Any]], LiveGraph]


@dataclass
class Session:
    """One call of the backend: what it may use, and `restored`, the graphs that came from PyTorch's entry, forward first.

    `restored` is empty if the graph was compiled after all, as where the forward's artifact was there and the backward's was not.
    """

    options: Options
    fingerprint: str
    restore: Restore
    restored: list[LiveGraph] = field(default_factory=list)


_session: ContextVar[Session | None] = ContextVar("neuron_dynamo_aot_session", default=None)


class RestorableGraph(OutputCode):
    """A compiled graph as AOTAutograd calls and pickles it.

    A call goes straight to `live`: `__call__` is looked up in C, so it costs no frame here.
    """

    live: LiveGraph
    _state: str | None = None
    if not TYPE_CHECKING:
        __call__ = property(attrgetter("live"))

    def __init__(self, live: LiveGraph) -> None:
        self._boxed_call = True  # on the instance: Dynamo wraps the backward and copies only __dict__
        self.live = live

    @staticmethod
    def from_state(state: str) -> RestorableGraph:
        """An object that `post_compile` brings to life."""
        graph = RestorableGraph.__new__(RestorableGraph)
        graph._boxed_call = True
        graph._state = state
        return graph

    def __reduce__(self) -> tuple[Callable[[str], RestorableGraph], tuple[str]]:
        if self._state is not None:
            return RestorableGraph.from_state, (self._state,)
        session = _session.get()
        if session is None or session.options.cache not in ("on", "refresh"):
            raise BypassAOTAutogradCache("neuron_dynamo: the cache is not written to")
        try:
            graph = self.live.to_state()
        except NotRestorable as reason:
            raise BypassAOTAutogradCache(f"neuron_dynamo: {reason}") from reason
        state = {"format": _STATE_FORMAT, "fingerprint": session.fingerprint, "graph": graph}
        return RestorableGraph.from_state, (json.dumps(state),)

    def prepare_for_serialization(self) -> None:
        """Nothing to do: a copy of this object, made through `__reduce__`, holds nothing live."""

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Load the artifact. Raises FXGraphCacheMiss, upon which AOTAutograd compiles the graph as if there were no entry."""
        if self._state is None:
            return
        session = _session.get()
        if session is None:
            raise FXGraphCacheMiss("neuron_dynamo: an entry of its backend can only be loaded by its backend")
        try:
            live = _restored(self._state, session)
        except Exception as error:
            expected = isinstance(error, (NotRestorable, NeuronDynamoError))
            _log.log(logging.INFO if expected else logging.WARNING, "graph not restored: %s", error, exc_info=not expected)
            raise FXGraphCacheMiss(f"neuron_dynamo: {error}") from error
        self.live = live
        session.restored.append(live)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There are no Triton kernels."""


def _restored(text: str, session: Session) -> LiveGraph:
    state = json.loads(text)
    if state["format"] != _STATE_FORMAT or state["fingerprint"] != session.fingerprint:
        raise NotRestorable("the entry was made with other settings or by another version")
    return session.restore(state["graph"], session.options)


def aot_compiler(compile_graph: CompileGraph) -> SerializableAOTDispatchCompiler:
    """`compile_graph` as a forward, backward or inference compiler whose results AOTAutogradCache takes."""

    def compile_restorable(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> RestorableGraph:
        session = _session.get()
        if session is not None:
            session.restored.clear()
        start = time.time_ns()
        compiled = RestorableGraph(compile_graph(graph, inputs))
        compiled._time_taken_ns = time.time_ns() - start
        return compiled

    return SerializableAOTDispatchCompiler(RestorableGraph, compile_restorable)


def aot_fingerprint(options: Options, compiler: Compiler) -> str:
    """SHA-256 (hex) over all of ours that decides what a Dynamo graph is compiled to: options, target, compiler, versions, sources."""
    key = program_key("", options.resolved_target, options, compiler)
    described = [key.to_json(), options.fallback, options.rng, options.fusions, package_digest()]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def uncacheable_reason(graph: torch.nn.Module) -> str | None:
    """Why AOTAutogradCache must not be asked about the Dynamo `graph`, or None.

    PyTorch's key names a function, but does not see into it, and looks only at the outermost graph; a tensor constant enters it
    with its shape alone. So code or values of the user's could change under an unchanged key. Parameters and buffers of the outermost
    module are no constants: AOTAutograd makes them inputs of the graph. Which of PyTorch's own ops a graph will come to, it does not show:
    code of the user's for one of them may take part in any.
    """
    if foreign := _ops_of_pytorchs_with_the_users_code():
        return f"code of the user's computes {foreign[0]}"
    inputs = {name for named in (graph.named_parameters, graph.named_buffers) for name, _ in named(remove_duplicate=False)}
    for module in graph.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if isinstance(node.meta.get("example_value"), torch.Tensor) and node.meta["example_value"].is_nested:
                return "it has nested tensors, which PyTorch's key cannot describe"
            if node.op == "call_module":
                return f"it calls module {node.target}"
            if node.op == "get_attr" and module is graph and node.target in inputs:
                continue
            if node.op == "get_attr" and isinstance(_attribute(module, node.target), torch.Tensor):
                return f"it holds the tensor constant {node.target}"
            if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
                namespace = str(node.target).partition(".")[0]
                if namespace not in _KNOWN_NAMESPACES:
                    return f"it calls the custom op {node.target}"
            if node.op == "call_function" and not hasattr(node.target, "__module__"):
                return f"it calls {node.target}, which no module holds"  # a method of a C type, such as a write to .data
            try:
                check_node_safe(node)
            except BypassAOTAutogradCache as reason:
                return str(reason)
    return None


def _ops_of_pytorchs_with_the_users_code() -> list[str]:
    """Rules and decompositions registered with us, and kernels given to torch.library."""
    ruled = [str(op) for op in custom.taken() if op.namespace in _KNOWN_NAMESPACES]
    kernels = (name.split("/") for name in torch.library._impls if name.startswith("aten/"))
    return sorted([*ruled, *(f"aten.{op} for {key}" for _, op, key in kernels if key in _KERNELS)])


def _attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _without_inductors_code_generators() -> contextlib.AbstractContextManager[Any]:
    """Leave Inductor's custom passes for other devices out of the key, which have no effect here.

    To list them, the key would import all of Inductor's code generators: more than a second of every first call.
    """
    return patch.multiple(codecache, init_backend_registration=lambda: None, custom_backend_passes={}, custom_backend_codegen_configs={})


@contextlib.contextmanager
def aot_cache_config(options: Options, fingerprint: str, restore: Restore, graph: torch.nn.Module) -> Iterator[Session]:
    """The settings of PyTorch under which the backend calls `aot_autograd` on the Dynamo `graph`.

    With cache `on` and `refresh`, entries are read and written; with `readonly` and `require` only read; with `off`, with a
    `dump_dir` (whose stages only a full compile passes through), and for a graph with an `uncacheable_reason`, neither. Where the user has
    switched PyTorch's caches off, they stay off. `fingerprint` becomes part of PyTorch's key.
    """
    reason = "no cache wanted" if options.cache == "off" or options.dump_dir else uncacheable_reason(graph)
    with contextlib.ExitStack() as stack:
        if reason is not None:
            _log.info("AOTAutogradCache is not used for this graph: %s", reason)
            stack.enter_context(functorch_config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False))
        else:
            stack.enter_context(_without_inductors_code_generators())
            tag = f"{torch.compiler.config.cache_key_tag}neuron_dynamo:{fingerprint}"
            stack.enter_context(torch.compiler.config.patch(cache_key_tag=tag))  # type: ignore[attr-defined]
            stack.enter_context(
                functorch_config.patch(
                    bundled_autograd_cache=True,
                    enable_remote_autograd_cache=False,
                    # Otherwise the entry would be saved at the first backward, when these settings no longer hold.
                    force_non_lazy_backward_lowering=should_use_local_autograd_cache(),
                )
            )
        session = Session(options, fingerprint, restore)
        token = _session.set(session)
        stack.callback(_session.reset, token)
        yield session
