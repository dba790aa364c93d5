"""Thin helpers over torch-mlir's MLIR bindings: types, attributes, operations. Needs an active `ir.Context` and location."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import torch


class _TorchMlir:
    """The bindings, loaded on first use: rules register without them, so that a warm start never pays for the import."""

    @functools.cached_property
    def ir(self) -> Any:
        from torch_mlir import ir

        return ir

    @functools.cached_property
    def stablehlo(self) -> Any:
        from torch_mlir._mlir_libs import _stablehlo

        return _stablehlo


_lib = _TorchMlir()

_ELEMENT_TYPES = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
    torch.float8_e8m0fnu: "f8E8M0FNU",
}
DTYPES = {name: dtype for dtype, name in _ELEMENT_TYPES.items()}
"""torch's dtypes by the name of the element type."""
_NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}


def supported(dtype: torch.dtype) -> bool:
    """Whether StableHLO has this dtype."""
    return dtype in _ELEMENT_TYPES


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) dtype with the same bits."""
    return _NUMPY[dtype]


def element_type(dtype: torch.dtype) -> Any:
    return _lib.ir.Type.parse(_ELEMENT_TYPES[dtype])


def tensor_type(shape: Sequence[int], dtype: torch.dtype) -> Any:
    return _lib.ir.RankedTensorType.get(list(shape), element_type(dtype))


def create(name: str, results: Sequence[Any], operands: Sequence[Any], attributes: dict[str, Any], regions: int) -> Any:
    """Create an operation at the current insertion point."""
    return _lib.ir.Operation.create(name, results=results, operands=operands, attributes=attributes, regions=regions)


def append_block(operation: Any, region: int, types: Sequence[Any]) -> Any:
    return operation.regions[region].blocks.append(*types, arg_locs=[_lib.ir.Location.unknown()] * len(types))


@contextmanager
def at_end_of(block: Any) -> Iterator[None]:
    with _lib.ir.InsertionPoint(block):
        yield


def elements(array: np.ndarray[Any, Any], dtype: torch.dtype) -> Any:
    """A dense elements attribute, splat where all elements are equal."""
    kind = tensor_type(array.shape, dtype)
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype == torch.bool:
        if flat.size and (flat.all() or not flat.any()):
            return _lib.ir.DenseElementsAttr.get_splat(kind, _lib.ir.IntegerAttr.get(element_type(dtype), int(flat[0])))
        return _lib.ir.DenseElementsAttr.get(flat, type=kind)
    return _lib.ir.DenseElementsAttr.get(flat if dtype.is_complex else flat.view(f"u{dtype.itemsize}"), type=kind)


def i64(value: int) -> Any:
    return _lib.ir.IntegerAttr.get(_lib.ir.IntegerType.get_signless(64), int(value))


def i32(value: int) -> Any:
    return _lib.ir.IntegerAttr.get(_lib.ir.IntegerType.get_signless(32), int(value))


def i64s(values: Sequence[int]) -> Any:
    return _lib.ir.DenseI64ArrayAttr.get([int(v) for v in values])


def bools(values: Sequence[bool]) -> Any:
    return _lib.ir.DenseBoolArrayAttr.get(list(values))


def pairs(values: Sequence[tuple[int, int]]) -> Any:
    """Padding pairs as a dense tensor<Nx2xi64>."""
    return _lib.ir.DenseElementsAttr.get(np.array(values, dtype=np.int64).reshape(-1, 2))


def boolean(value: bool) -> Any:
    return _lib.ir.BoolAttr.get(value)


def string(value: str) -> Any:
    return _lib.ir.StringAttr.get(value)


def attribute_text(value: bool | int | float | str) -> str:
    """A plain value in MLIR's syntax: i64, f64 (exact) or string."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int):
        return f"{value} : i64"
    return f"0x{np.float64(value).view(np.uint64):016X} : f64" if not np.isfinite(value) else f"{value:.17e} : f64"


def parse(text: str) -> Any:
    return _lib.ir.Attribute.parse(text)


def comparison(direction: str, dtype: torch.dtype) -> dict[str, Any]:
    """Attributes of stablehlo.compare for operands of `dtype`; bool compares unsigned, else XLA's verifier refuses it."""
    if dtype.is_floating_point or dtype.is_complex:
        kind = "FLOAT"
    elif dtype in (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        kind = "UNSIGNED"
    else:
        kind = "SIGNED"
    return {
        "comparison_direction": _lib.stablehlo.ComparisonDirectionAttr.get(direction),
        "compare_type": _lib.stablehlo.ComparisonTypeAttr.get(kind),
    }
