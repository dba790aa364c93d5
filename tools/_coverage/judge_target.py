"""One case lowered for a Neuron target: nothing is compiled or run, only the programs are judged, by preflight."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo

import neuron_dynamo
from neuron_dynamo.errors import InspectError
from neuron_dynamo.inspection import Report
from neuron_dynamo.preflight import Finding, check
from neuron_dynamo.target import get_target
from tools._coverage.cases import Case
from tools._coverage.judge import Verdict, _compiled, _copies, _run, in_one


def judge_target(case: Case, target: str) -> Verdict:
    """N, P, H or - as on the host; R where preflight finds that the target's compiler refuses a program, with what it finds."""
    torch._dynamo.reset()
    try:
        original = case.fresh()
        if hasattr(original, "load"):
            original.load()
        args, kwargs = _copies((case.args, case.kwargs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = _inspected(original, args, kwargs, {"target": target})
    except Exception as error:
        return _explain(case, error)
    refused = [f for g in report.graphs for p in g.programs for f in check(p.program, get_target(target)) if f.refused]
    ops = [op for graph in report.graphs for op in graph.ops]
    hosts = sorted({f"{op.name}: {op.reason}" for op in ops if op.placement == "host" and "getitem" not in op.name})
    if refused:
        return Verdict("R", "", sorted({_brief(f) for f in refused}))
    if all(op.placement == "runtime" for op in ops):
        return Verdict("-")
    if not hosts:
        return Verdict("N")
    return Verdict("P" if any(g.native for g in report.graphs) else "H", "", hosts)


def judge_target_together(cases: Sequence[Case], target: str) -> str:
    """As judge_together, by lowering the cases as one graph."""
    together = in_one(cases)
    letter = "" if together is None else judge_target(together, target).letter
    return letter if letter in "N-" else ""


def _brief(found: Finding) -> str:
    return f"{found.code}: {found.what}"


def _inspected(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, str]) -> Report:
    if isinstance(call, torch.nn.Module):
        return neuron_dynamo.inspect(call, *args, options=options, **kwargs)

    # A function of Python's own around builtins, which Dynamo does not take as frames; and arguments may be called as inspect's are.
    def function(args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return neuron_dynamo.inspect(function, args, kwargs, options=options)


def _explain(case: Case, error: Exception) -> Verdict:
    """Errors are ours only where PyTorch's own aot_eager traces the case whole."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, InspectError) or "its data is not allocated yet" in text:
        return Verdict("B", text)  # it reads values, which an inspection does not have
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _run(case, case.fresh())
        except Exception:
            return Verdict("X", text)
        try:
            original = case.fresh()
            _run(case, _compiled(original, {}, "aot_eager"), original)
        except Exception:
            return Verdict("B", text)
    return Verdict("E", text)
