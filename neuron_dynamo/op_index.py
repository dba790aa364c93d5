"""Which op is lowered how, and where in the code: an index over rules, decompositions and PyTorch's own composites."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class IndexedOp:
    """One op overload. `how` is "rule" (StableHLO of ours), "decomposition" (into other ops), "composite" (PyTorch itself traces it as
    other ops) or "host" (eager PyTorch); `where` is the file and line of rule or decomposition, '' for the others."""

    name: str
    how: str
    where: str = ""


def index(pattern: str = "", namespaces: tuple[str, ...] = ("aten", "prims")) -> list[IndexedOp]:
    """Every op of the namespaces whose name contains `pattern` (in any case), by name. In-place and out= forms, which AOTAutograd replaces
    before anything is lowered, are left out."""
    from neuron_dynamo.lowering import registry
    from neuron_dynamo.passes.decompositions import decomposition_table

    rules, decompositions = registry.registered(), decomposition_table()
    found = []
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = qualified.partition("::")
        name = f"{namespace}.{rest if '.' in rest else rest + '.default'}"
        if namespace not in namespaces or pattern.lower() not in name.lower():
            continue
        op = _overload(namespace, rest)
        if op is None or op._schema.is_mutable:
            continue
        if op in rules or str(op) in rules:
            found.append(IndexedOp(name, "rule", _place((rules.get(op) or rules[str(op)]).rule)))
        elif op in decompositions and _place(decompositions[op]):
            found.append(IndexedOp(name, "decomposition", _place(decompositions[op])))
        elif op in decompositions or torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd"):
            found.append(IndexedOp(name, "composite"))
        else:
            found.append(IndexedOp(name, "host"))
    return found


def _overload(namespace: str, name: str) -> Any:
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except AttributeError:  # known to TorchScript alone
        return None


def _place(function: Callable[..., Any]) -> str:
    inner = inspect.unwrap(function)
    try:
        file, (_, line) = inspect.getsourcefile(inner), inspect.getsourcelines(inner)
    except (TypeError, OSError):
        return ""
    roots = (os.path.dirname(__file__), os.path.dirname(torch.__file__))
    short = next((os.path.relpath(file, os.path.dirname(r)) for r in roots if file and file.startswith(r)), file or "")
    return f"{short}:{line}"
