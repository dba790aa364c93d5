"""Numbers of Python's as array elements, with the conversions of torch."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import torch

from neuron_dynamo.lowering import mlir

FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu})


def to_numpy(value: complex, dtype: torch.dtype) -> np.ndarray[Any, Any]:
    """A 0-d array of `dtype`: integers wrap, floats round."""
    numpy_dtype = mlir.numpy_dtype(dtype)
    if isinstance(value, complex) and not dtype.is_complex:
        value = value.real
    if not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool:
        if isinstance(value, float):
            value = int(value) if math.isfinite(value) else 0
        bits = 8 * dtype.itemsize
        wrapped = int(value.real) & ((1 << bits) - 1)
        return np.array(wrapped, dtype=f"u{dtype.itemsize}").view(numpy_dtype)
    if dtype == torch.bool:
        return np.array(bool(value))
    if dtype in FLOAT8:
        with torch.utils._python_dispatch._disable_current_modes():
            return torch.tensor(float(value.real)).to(dtype).view(torch.uint8).numpy().view(numpy_dtype)
    with np.errstate(over="ignore"):
        if numpy_dtype.type.__module__ == ml_dtypes.__name__:
            return np.array(float(value.real), dtype=np.float64).astype(np.float32).astype(numpy_dtype)
        return np.array(value).astype(numpy_dtype)
