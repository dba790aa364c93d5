"""From an FX node to the user's source line."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import torch
from torch.fx import Node

from neuron_dynamo.errors import SourceLine

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n\s+([^\n]+))?')
_TORCH = str(Path(torch.__file__).parent)


def source_of(node: Node) -> SourceLine | None:
    """The innermost frame outside torch itself of the node's stack trace (else the innermost), with its module path."""
    trace = node.meta.get("stack_trace")
    frame = _frame(trace) if trace else None
    if frame is None:
        return None
    file, line, code = frame
    return SourceLine(file, int(line), _module_path(node), code.strip())


@functools.lru_cache(maxsize=4096)
def _frame(trace: str) -> tuple[str, str, str] | None:
    """(file, line, code) of the frame that a stack trace is about. Many nodes share a trace."""
    frames = _FRAME.findall(trace)
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    return (own or frames)[-1] if frames else None


def _module_path(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    return (
        re.sub(r"L\['(\w+)'\]\.?|\._modules\['(\w+)'\]|\['(\w+)'\]", lambda m: "." + (m[2] or m[3]) if (m[2] or m[3]) else "", path).strip(
            "."
        )
        or path
    )
