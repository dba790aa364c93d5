"""neuron_dynamo: a torch.compile backend for AWS Trainium and Inferentia.

Backends `neuron` and `neuron_dynamo` register by entry point: `torch.compile(model, backend="neuron")` needs no import of this
package. This module is its public API and is light to import: toolchains load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuron_dynamo.version import __version__

if TYPE_CHECKING:
    from neuron_dynamo import cache, errors, warmup
    from neuron_dynamo.checking import CheckReport, check
    from neuron_dynamo.custom import register_decomposition, register_lowering
    from neuron_dynamo.inspection import Report, inspect
    from neuron_dynamo.options import Options
    from neuron_dynamo.report import GraphReport, OpReport, reports

__all__ = [
    "CheckReport",
    "GraphReport",
    "OpReport",
    "Options",
    "Report",
    "__version__",
    "cache",
    "check",
    "errors",
    "inspect",
    "register_decomposition",
    "register_lowering",
    "reports",
    "warmup",
]

_HOMES = {
    "CheckReport": "checking",
    "GraphReport": "report",
    "OpReport": "report",
    "Options": "options",
    "Report": "inspection",
    "check": "checking",
    "inspect": "inspection",
    "register_decomposition": "custom",
    "register_lowering": "custom",
    "reports": "report",
    "cache": "",
    "errors": "",
    "warmup": "",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{home}"), name) if home else importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
