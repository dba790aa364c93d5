"""A small backend on aot_cache: it interprets a JSON description of the graph, which is its artifact in the real store."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from neuron_dynamo.aot_cache import NotRestorable, Session, aot_cache_config, aot_compiler, aot_fingerprint
from neuron_dynamo.cache import Artifact, Cache, CacheKey
from neuron_dynamo.lowering.program import Signature
from neuron_dynamo.options import Options


@dataclass
class ToyCompiler:
    version: str = "1"
    name: str = "toy"

    def identity(self):
        return (("version", self.version),)


@dataclass
class ToyGraph:
    key: CacheKey
    description: dict[str, Any]

    def __call__(self, inputs):
        values = {f"%{name}": value for name, value in zip(self.description["inputs"], inputs, strict=True)}
        inputs.clear()
        for name, target, args, kwargs in self.description["calls"]:
            op = torch.ops
            for part in target.split("."):
                op = getattr(op, part)
            values[f"%{name}"] = op(*_decoded(args, values), **_decoded(kwargs, values))
        return _decoded(self.description["outputs"], values)

    def to_state(self):
        return {"key": self.key.to_json()}


def _encoded(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _encoded(item) for name, item in value.items()}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, torch.dtype):
        return f"dtype {str(value).removeprefix('torch.')}"
    if isinstance(value, (torch.device, torch.layout)):
        return None
    raise NotRestorable(f"no JSON for {type(value).__name__}")


def _decoded(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, str):
        return getattr(torch, value.removeprefix("dtype ")) if value.startswith("dtype ") else values[value]
    if isinstance(value, list):
        return [_decoded(item, values) for item in value]
    if isinstance(value, dict):
        return {name: _decoded(item, values) for name, item in value.items()}
    return value


@dataclass
class EagerGraph:
    """What a graph becomes that has no description."""

    module: torch.fx.GraphModule
    reason: NotRestorable

    def __call__(self, inputs):
        return torch.fx.Interpreter(self.module).boxed_run(inputs)

    def to_state(self):
        raise self.reason


def _description(graph: torch.fx.GraphModule) -> dict[str, Any]:
    calls, inputs, outputs = [], [], None
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            if not isinstance(node.meta["val"], torch.Tensor):
                raise NotRestorable("it has a symbolic size")
            inputs.append(node.name)
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            calls.append((node.name, str(node.target), _encoded(node.args), _encoded(node.kwargs)))
        elif node.op == "output":
            outputs = _encoded(node.args[0])
        else:
            raise NotRestorable(f"no JSON for {node.op} {node.target}")
    return {"inputs": inputs, "calls": calls, "outputs": outputs}


@dataclass
class ToyBackend:
    """Counts what was compiled, and what was restored by the sessions that hit."""

    given: dict[str, Any]
    compiler: ToyCompiler = field(default_factory=ToyCompiler)
    compiled: int = 0
    restored: int = 0
    restore_calls: int = 0
    last: Session | None = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        options = Options.resolve(self.given, environ={})
        compiler = aot_compiler(lambda module, examples: self.compile(module, options))
        with aot_cache_config(options, aot_fingerprint(options, self.compiler), self.restore, graph) as self.last:
            function = aot_autograd(fw_compiler=compiler, bw_compiler=aot_compiler(lambda module, examples: self.compile(module, options)))(
                graph, inputs
            )
        self.restored += len(self.last.restored)
        return function

    def compile(self, module: torch.fx.GraphModule, options: Options):
        self.compiled += 1
        try:
            description = _description(module)
        except NotRestorable as reason:
            return EagerGraph(module, reason)
        payload = json.dumps(description).encode()
        key = CacheKey((("program", hashlib.sha256(payload).hexdigest()),))
        Cache(options).put(key, Artifact(payload, Signature((), ())))
        return ToyGraph(key, description)

    def restore(self, state: dict[str, Any], options: Options) -> ToyGraph:
        self.restore_calls += 1
        key = CacheKey.from_json(state["key"])
        artifact = Cache(options).lookup(key).artifact
        if artifact is None:
            raise NotRestorable("its artifact is gone")
        return ToyGraph(key, json.loads(artifact.payload))


@contextlib.contextmanager
def new_process() -> Iterator[None]:
    """Forget what a new process would not know: Dynamo's code, counters, the memory level of the cache."""
    from neuron_dynamo.cache import store

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    store._memory.clear()
    yield
