"""Custom calls whose contract the vendor publishes: what they take, and how they are configured.

Of QuantizeMX and the block-scaled dot it publishes the conditions and, apart, the range of their codes (NCC_EVRF036 to 050, 053 to 055, 057
and 058), so that a finding of theirs has no code.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neuron_dynamo.lowering.reading import Operation
from neuron_dynamo.preflight.rule import Fault, rule
from neuron_dynamo.target import Target

_CALL = "stablehlo.custom_call"
_WIDE_ROW, _LARGE_K = 32768, 16
_QUANTIZED = ("float8_e5m2", "float8_e4m3fn")
_BLOCK = 32
_PACKED = 4
_NORMALISING = {
    "AwsNeuronRmsNorm": ("x", "weight", "eps"),
    "AwsNeuronSoftmax": ("x",),
    "AwsNeuronSoftmaxBackward": ("grad", "output"),
}
"""Operands of the custom calls that work along one dim."""


def _is(operation: Operation, name: str) -> bool:
    return bool(operation.attributes["call_target_name"] == name)


def _config(operation: Operation) -> str:
    return str(operation.attributes.get("backend_config", ""))


def _json(text: str) -> dict[str, Any] | None:
    """The dictionary that `text` is, or None."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


@rule(_CALL)
def top_k(operation: Operation, target: Target) -> Iterator[Fault]:
    if not _is(operation, "AwsNeuronTopK") or len(operation.operands) != 1:
        return
    text, row = _config(operation), (operation.operands[0].shape or (0,))[-1] or 0
    if not text.isdigit() or not 0 < int(text) <= row:
        yield Fault("", f"AwsNeuronTopK of {text or 'no number'} in rows of {row}", "give a number from 1 to the size of a row")
    elif row >= _WIDE_ROW and int(text) >= _LARGE_K:
        what = f"AwsNeuronTopK of {text} in rows of {row}, on which releases of the compiler were seen to fail"
        yield Fault("NCC_ISGV902", what, "take the top of parts of the row first", refused=False)


@rule(_CALL)
def normalise(operation: Operation, target: Target) -> Iterator[Fault]:
    """Operands and configuration as the vendor's own code gives them; no specification tells what else would be taken."""
    takes = _NORMALISING.get(operation.attributes["call_target_name"])
    if takes is None:
        return
    name, given, text = operation.attributes["call_target_name"], operation.operands, _config(operation)
    if len(given) != len(takes):
        yield Fault("", f"{name} of {len(given)} tensors", f"give {' and '.join(takes)}")
        return
    rank = len(given[0].shape)
    if not (text.isascii() and text.isdigit() and int(text) < rank):
        yield Fault("", f"{name} along dim {text or 'nowhere'} of {rank}", "give the dim as a decimal number, counted from the front")
    if "eps" in takes:
        made = operation.makers[2]
        if str(given[2]) != "f32[]" or made is None or made.name != "stablehlo.constant":
            yield Fault("", f"{name} with {given[2]} as its epsilon", "give a float32 scalar constant")


@rule(_CALL)
def quantize(operation: Operation, target: Target) -> Iterator[Fault]:
    if not _is(operation, "QuantizeMX"):
        return
    config = _json(_config(operation))
    if config is None or config.get("dtype") not in _QUANTIZED:
        yield Fault("", "QuantizeMX without its type", f"give a JSON backend_config with dtype {' or '.join(_QUANTIZED)}")
        return
    if len(operation.operands) != 1 or operation.operands[0].element not in ("bf16", "f16"):
        yield Fault("", "QuantizeMX of other than one bf16 or f16 tensor", "convert to bfloat16 first")
        return
    if config.get("block_size", _BLOCK) != _BLOCK or config.get("scale_method", "EMAX") != "EMAX":
        yield Fault("", "QuantizeMX in other blocks or scales than it has", f"use blocks of {_BLOCK} and scale_method EMAX")
    shape, dim = operation.operands[0].shape, config.get("dim", 0)
    rank = len(shape)
    if not isinstance(dim, int) or not max(0, rank - 2) <= (dim + rank if dim < 0 else dim) < rank:
        yield Fault("", f"QuantizeMX along dim {dim} of {rank}", "quantize along one of the last two dims")
    elif (shape[dim] or 0) % _PACKED:
        what = f"QuantizeMX of {shape[dim]} elements, which are packed by {_PACKED}"
        yield Fault("", what, f"pad the dim to a multiple of {_PACKED}")
    if len(operation.results) != 2:
        yield Fault("", "QuantizeMX has two results: the packed data and the scales", "take both")


@rule(_CALL)
def scaled_dot(operation: Operation, target: Target) -> Iterator[Fault]:
    if not _is(operation, "__op$block_scaled_dot"):
        return
    if len(operation.operands) != 4:
        yield Fault("", f"a block-scaled dot of {len(operation.operands)} tensors", "give both packed tensors, then both scales")
        return
    if any(operation.operands[side].element != "ui32" for side in (0, 1)):
        yield Fault("", "a block-scaled dot of other than packed uint32", "quantize both sides with QuantizeMX")
    if any(len(operation.operands[side].shape) < 2 for side in (0, 1)):
        yield Fault("", "a block-scaled dot of fewer than two dims", "reshape both sides to matrices")
    if operation.results[0].element not in ("f32", "bf16"):
        yield Fault("", f"a block-scaled dot to {operation.results[0].element}", "take float32 or bfloat16")
    text = _config(operation)
    if text not in ("", "None") and _json(text) is None:
        yield Fault("", "a block-scaled dot whose configuration is no JSON", "give JSON, or leave it out")


@rule(_CALL)
def kernel_file(operation: Operation, target: Target) -> Iterator[Fault]:
    """The file of an NKI kernel is read when the program is compiled."""
    if not _is(operation, "AwsNeuronCustomNativeKernel"):
        return
    try:
        described = _json(base64.b64decode(_config(operation), validate=True).decode())
    except (binascii.Error, UnicodeDecodeError):
        described = None
    binary = described.get("klir_binary") if described is not None else None
    path = binary.get("binary") if isinstance(binary, dict) else None
    if isinstance(path, str) and not Path(path).exists():
        yield Fault("NCC_EVRF059", f"an NKI kernel whose file {path} is gone", "trace the kernel again")
