"""What a compile tells PyTorch's own tools: TORCH_LOGS="+neuron_dynamo", TORCH_TRACE (tlparse) artifacts, Dynamo's counters."""

from __future__ import annotations

import json
import logging
from typing import Any

from torch._dynamo.utils import counters
from torch._logging._internal import trace_structured

from neuron_dynamo.report import GraphReport, ProgramReport

_log = logging.getLogger(__name__)


def announce(outcome: GraphReport) -> None:
    """Log one finished graph, count it, and hand its texts to TORCH_TRACE (made only if someone reads them)."""
    counts = counters["neuron_dynamo"]
    counts[f"{outcome.kind}_graphs"] += 1
    counts["native_ops"] += outcome.native
    counts["host_ops"] += outcome.host
    for program in outcome.programs:
        counts[f"cache_{program.cache}"] += 1
        counts[f"program_{program.lowered}"] += 1
    seconds = ", ".join(f"{stage} {time:.3f} s" for stage, time in outcome.timings.items())
    _log.info("%s: %d ops native, %d on the host, cache %s; %s", outcome.name, outcome.native, outcome.host, outcome.cache, seconds)
    if _log.isEnabledFor(logging.INFO):
        for program in outcome.programs:
            why = f": {program.why}" if program.cache == "miss" else ""
            _log.info("%s: artifact %s %s, Program %s%s", outcome.name, program.key[:16], program.cache, program.lowered, why)
    for op in outcome.ops:
        if op.placement == "host":
            _log.info("%s: %s on the host: %s (%s)", outcome.name, op.name, op.reason, op.source)
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s FX graph:\n%s", outcome.name, outcome.fx)
        _log.debug("%s StableHLO:\n%s", outcome.name, outcome.stablehlo)
    _artifact(outcome, "fx", lambda: outcome.fx)
    _artifact(outcome, "stablehlo", lambda: outcome.stablehlo)
    _artifact(outcome, "cache", lambda: json.dumps([_decision(program) for program in outcome.programs], indent=1), "json")


def _decision(program: ProgramReport) -> dict[str, Any]:
    """What the cache said of one program, with the keys that it was asked for."""
    keys = {"artifact": program.cache_key, "program": program.program_key}
    parts = {f"{name}_key": dict(key.parts) for name, key in keys.items() if key is not None}
    return {"digest": program.key, "artifact": program.cache, "program": program.lowered, "why": program.why, **parts}


def _artifact(outcome: GraphReport, stage: str, payload: object, encoding: str = "string") -> None:
    name = f"neuron_dynamo_{outcome.name}_{stage}"
    trace_structured("artifact", metadata_fn=lambda: {"name": name, "encoding": encoding}, payload_fn=payload)  # type: ignore[arg-type]
