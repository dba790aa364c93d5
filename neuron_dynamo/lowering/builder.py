"""Builder: emits StableHLO for lowering rules, with the folds that keep programs small done as they are written.

A rule sees `Value`s (dense tensors of static shape) and never MLIR. Structured ops (reduce, dot, gather, sort ...) are in
structured.py. All shapes are in elements; all dtypes are torch's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.constants import FLOAT8, to_numpy
from neuron_dynamo.lowering.program import TensorSpec
from neuron_dynamo.target import Target

Scalar = bool | int | float | complex


@dataclass(frozen=True, eq=False)
class Value:
    """A StableHLO tensor: its MLIR value, shape and dtype, and the Value it is a view of, for folds.

    `transposed` is (source, permutation) and `reshaped` the source, where this Value was made by that op.
    """

    ir: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    transposed: tuple[Value, tuple[int, ...]] | None = None
    reshaped: Value | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class Builder:
    """Emits ops at the end of the current block. `target` answers what the program may contain; `out` is what the
    rule now running must return: one TensorSpec per tensor result (None where the FX node has none); `used` tells which of
    several results have users."""

    def __init__(self, target: Target, new_function: Callable[[str, Sequence[TensorSpec], Sequence[TensorSpec]], Any]) -> None:
        self.target = target
        self.outs: tuple[TensorSpec | None, ...] = ()
        self.used: tuple[bool, ...] = ()
        self.uses_chlo = False
        self._new_function = new_function
        self._constants: list[dict[Any, Value]] = [{}]

    @property
    def out(self) -> TensorSpec:
        """Spec of the running rule's single result."""
        spec = self.outs[0]
        assert spec is not None
        return spec

    # Emission

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[tuple[Sequence[int], torch.dtype]],
        attributes: dict[str, Any] | None = None,
        regions: int = 0,
    ) -> Any:
        """Emit `stablehlo.<name>`; returns the MLIR operation."""
        types = [mlir.tensor_type(tuple(shape), dtype) for shape, dtype in results]
        return mlir.create(f"stablehlo.{name}", types, [v.ir for v in operands], attributes or {}, regions)

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        shape: Sequence[int],
        dtype: torch.dtype,
        attributes: dict[str, Any] | None = None,
    ) -> Value:
        """Emit a one-result op without regions."""
        return Value(self.op(name, operands, [(shape, dtype)], attributes).result, tuple(shape), dtype)

    @contextlib.contextmanager
    def region(self, operation: Any, index: int, arguments: Sequence[tuple[Sequence[int], torch.dtype]]) -> Iterator[list[Value]]:
        """Fill region `index` of `operation`; yields its block arguments. End it with `self.ret(...)`."""
        block = mlir.append_block(operation, index, [mlir.tensor_type(tuple(s), d) for s, d in arguments])
        self._constants.append({})
        with mlir.at_end_of(block):
            yield [Value(a, tuple(s), d) for a, (s, d) in zip(block.arguments, arguments, strict=True)]
        self._constants.pop()

    def ret(self, *values: Value) -> None:
        """Terminate a region."""
        mlir.create("stablehlo.return", [], [v.ir for v in values], {}, 0)

    def function(
        self, name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], body: Callable[[list[Value]], list[Value]]
    ) -> str:
        """A private function of the module, for composites; returns its symbol name."""
        symbol, block = self._new_function(name, inputs, outputs)
        self._constants.append({})
        with mlir.at_end_of(block):
            arguments = [Value(a, s.shape, s.dtype) for a, s in zip(block.arguments, inputs, strict=True)]
            mlir.create("func.return", [], [v.ir for v in body(arguments)], {}, 0)
        self._constants.pop()
        return str(symbol)

    def chlo(self, name: str, operands: Sequence[Value], shape: Sequence[int], dtype: torch.dtype) -> Value:
        """Emit `chlo.<name>`, which the pipeline expands into StableHLO: for functions whose expansion is long."""
        self.uses_chlo = True
        operation = mlir.create(f"chlo.{name}", [mlir.tensor_type(tuple(shape), dtype)], [v.ir for v in operands], {}, 0)
        return Value(operation.result, tuple(shape), dtype)

    # Constants

    def scalar(self, value: Scalar, dtype: torch.dtype) -> Value:
        """A 0-d constant. Integers wrap and floats round as torch's conversion does."""
        array = to_numpy(value, dtype)
        key = (array.tobytes(), dtype)
        found = self._constants[-1].get(key)
        if found is None:
            found = self.literal(array, dtype)
            self._constants[-1][key] = found
        return found

    def literal(self, array: np.ndarray[Any, Any], dtype: torch.dtype) -> Value:
        """A constant of any shape, stored in the program: keep it small."""
        op = mlir.create("stablehlo.constant", [mlir.tensor_type(array.shape, dtype)], [], {"value": mlir.elements(array, dtype)}, 0)
        return Value(op.result, tuple(array.shape), dtype)

    def full(self, shape: Sequence[int], value: Scalar, dtype: torch.dtype) -> Value:
        """A splat: a scalar constant, broadcast."""
        return self.broadcast(self.scalar(value, dtype), shape, ())

    def iota(self, shape: Sequence[int], dim: int, dtype: torch.dtype = torch.int64) -> Value:
        """0, 1, 2 ... along `dim`."""
        return self.emit("iota", [], shape, dtype, {"iota_dimension": mlir.i64(dim)})

    # Shape

    def broadcast(self, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        """stablehlo.broadcast_in_dim: dim i of x becomes dim `dims[i]` of the result."""
        shape = tuple(shape)
        if x.shape == shape and tuple(dims) == tuple(range(len(shape))):
            return x
        return self.emit("broadcast_in_dim", [x], shape, x.dtype, {"broadcast_dimensions": mlir.i64s(dims)})

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """Broadcast as torch does: trailing dims line up, size 1 stretches."""
        shape = tuple(shape)
        lead = len(shape) - x.ndim
        return self.broadcast(x, shape, range(lead, len(shape)))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Same elements in row-major order, another shape."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        source = x.reshaped if x.reshaped is not None else x
        if source.shape == shape:
            return source
        made = self.emit("reshape", [source], shape, x.dtype)
        return Value(made.ir, shape, x.dtype, reshaped=source)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Result dim i is x's dim `perm[i]`."""
        perm = tuple(perm)
        source = x
        if x.transposed is not None:
            source, before = x.transposed
            perm = tuple(before[p] for p in perm)
        if perm == tuple(range(len(perm))):
            return source
        shape = tuple(source.shape[p] for p in perm)
        made = self.emit("transpose", [source], shape, x.dtype, {"permutation": mlir.i64s(perm)})
        return Value(made.ir, shape, x.dtype, transposed=(source, perm))

    def move(self, x: Value, source: int, destination: int) -> Value:
        """Move dim `source` to position `destination`."""
        order = [d for d in range(x.ndim) if d != source]
        order.insert(destination, source)
        return self.transpose(x, order)

    def unsqueeze(self, x: Value, dim: int) -> Value:
        """Insert a dim of size 1 at `dim` (0 <= dim <= rank)."""
        return self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))

    def slice(self, x: Value, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None) -> Value:
        """Static slice, every dim given: start inclusive, limit exclusive, stride >= 1."""
        strides = [1] * x.ndim if strides is None else list(strides)
        shape = tuple(max(0, -(-(e - s) // t)) for s, e, t in zip(starts, limits, strides, strict=True))
        if shape == x.shape and all(t == 1 for t in strides):
            return x
        attributes = {"start_indices": mlir.i64s(starts), "limit_indices": mlir.i64s(limits), "strides": mlir.i64s(strides)}
        return self.emit("slice", [x], shape, x.dtype, attributes)

    def slice_dim(self, x: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
        """Static slice of one dim."""
        starts, limits, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
        starts[dim], limits[dim], strides[dim] = start, limit, stride
        return self.slice(x, starts, limits, strides)

    def pad(self, x: Value, value: Scalar | Value, low: Sequence[int], high: Sequence[int], interior: Sequence[int] | None = None) -> Value:
        """Pad with `value`; negative low or high crops; `interior` puts that many between elements."""
        interior = [0] * x.ndim if interior is None else list(interior)
        if not any(low) and not any(high) and not any(interior):
            return x
        if any(n < 0 for n in (*low, *high)):  # which XLA's CPU backend has no code for
            whole = self.pad(x, value, [max(n, 0) for n in low], [max(n, 0) for n in high], interior)
            return self.slice(whole, [max(-n, 0) for n in low], [size + min(n, 0) for size, n in zip(whole.shape, high, strict=True)])
        fill = value if isinstance(value, Value) else self.scalar(value, x.dtype)
        shape = [n + lo + hi + max(n - 1, 0) * i for n, lo, hi, i in zip(x.shape, low, high, interior, strict=True)]
        attributes = {"edge_padding_low": mlir.i64s(low), "edge_padding_high": mlir.i64s(high), "interior_padding": mlir.i64s(interior)}
        return self.emit("pad", [x, fill], shape, x.dtype, attributes)

    def concat(self, parts: Sequence[Value], dim: int) -> Value:
        """Concatenate along `dim`; all parts have one dtype."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[dim] = sum(p.shape[dim] for p in parts)
        return self.emit("concatenate", parts, shape, parts[0].dtype, {"dimension": mlir.i64(dim)})

    def reverse(self, x: Value, dims: Sequence[int]) -> Value:
        """Flip along `dims`."""
        return self.emit("reverse", [x], x.shape, x.dtype, {"dimensions": mlir.i64s(dims)}) if dims else x

    # Elementwise

    def convert(self, x: Value, dtype: torch.dtype) -> Value:
        """Elementwise conversion with torch's meaning (to bool: nonzero; float to integer: truncated)."""
        if x.dtype == dtype:
            return x
        if dtype == torch.bool:
            return self.compare("NE", x, self.full(x.shape, 0, x.dtype))
        if x.dtype.is_complex and not dtype.is_complex:
            x = self.emit("real", [x], x.shape, real_dtype(x.dtype))
            return self.convert(x, dtype)
        if x.dtype.is_floating_point and not dtype.is_floating_point and not dtype.is_complex:
            return self._float_to_integer(x, dtype)
        return _to_float8(self, x, dtype) if dtype in FLOAT8 else self.emit("convert", [x], x.shape, dtype)

    def _float_to_integer(self, x: Value, dtype: torch.dtype) -> Value:
        # Narrow integer types wrap in torch (through a wider one); XLA clamps.
        if dtype in (torch.int8, torch.int16, torch.uint8, torch.uint16):
            wide = self.emit("convert", [x], x.shape, torch.int32)
            return self.emit("convert", [wide], x.shape, dtype)
        return self.emit("convert", [x], x.shape, dtype)

    def unary(self, name: str, x: Value) -> Value:
        """An elementwise op of one operand that keeps its dtype."""
        return self.emit(name, [x], x.shape, x.dtype)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        """An elementwise op of two operands of equal shape and dtype."""
        assert x.shape == y.shape and x.dtype == y.dtype, (name, x.shape, x.dtype, y.shape, y.dtype)
        return self.emit(name, [x, y], x.shape, x.dtype)

    def add(self, x: Value, y: Value) -> Value:
        return self.binary("add", x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self.binary("subtract", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.binary("multiply", x, y)

    def div(self, x: Value, y: Value) -> Value:
        return self.binary("divide", x, y)

    def max(self, x: Value, y: Value) -> Value:
        """NaN if either is NaN."""
        return self.binary("maximum", x, y)

    def min(self, x: Value, y: Value) -> Value:
        """NaN if either is NaN."""
        return self.binary("minimum", x, y)

    def neg(self, x: Value) -> Value:
        return self.unary("negate", x)

    def logical_not(self, x: Value) -> Value:
        return self.unary("not", x)

    def like(self, x: Value, value: Scalar) -> Value:
        """A splat with x's shape and dtype."""
        return self.full(x.shape, value, x.dtype)

    def compare(self, direction: str, x: Value, y: Value) -> Value:
        """direction: EQ NE LT LE GT GE; returns bool."""
        assert x.shape == y.shape and x.dtype == y.dtype, (direction, x.shape, x.dtype, y.shape, y.dtype)
        return self.emit("compare", [x, y], x.shape, torch.bool, mlir.comparison(direction, x.dtype))

    def select(self, condition: Value, on_true: Value, on_false: Value) -> Value:
        """condition (bool, same shape or 0-d) ? on_true : on_false."""
        assert on_true.shape == on_false.shape and on_true.dtype == on_false.dtype
        return self.emit("select", [condition, on_true, on_false], on_true.shape, on_true.dtype)

    def is_nan(self, x: Value) -> Value:
        """x != x."""
        return self.compare("NE", x, x)

    # What rules share

    def value(self, x: Value | Scalar, dtype: torch.dtype, shape: Sequence[int] | None = None) -> Value:
        """x as a Value of `dtype`, broadcast to `shape` (torch's rules) if given."""
        x = self.convert(x, dtype) if isinstance(x, Value) else self.scalar(x, dtype)
        return x if shape is None else self.expand(x, shape)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the parts of a complex dtype; any other dtype itself."""
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype in which torch's CPU kernels accumulate: float32 for float16, bfloat16 and float8, else the dtype itself."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def accurate_dtype(dtype: torch.dtype, target: Target) -> torch.dtype:
    """float64 (complex128) where the target has it, else compute_dtype: for ops that lose what float32 rounded, and that ATen's CPU
    kernels compute in double."""
    narrow = compute_dtype(dtype)
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(narrow, narrow)
    return wide if wide in target.dtypes else narrow


_VANISHING = {torch.float8_e4m3fnuz: 2.0**-11, torch.float8_e5m2fnuz: 2.0**-18}
"""Half of the least number: what is no larger rounds to zero."""


def _to_float8(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    """x (any real dtype) as `dtype`, one of FLOAT8, with PyTorch's rounding and overflow (c10/util/Float8_*.h), through float32 as there.

    e4m3fn saturates, the others overflow to infinity or NaN. StableHLO's own `convert` rounds to nearest even as PyTorch does, but leaves
    open what happens beyond the range; what must differ from XLA there is done around it. A NaN stays a NaN; its payload may be another.
    """
    x = b.convert(x, torch.float32)
    if dtype == torch.float8_e8m0fnu:
        return _to_exponent(b, x)
    if dtype == torch.float8_e4m3fn:
        limit = torch.finfo(dtype).max
        x = b.max(b.min(x, b.like(x, limit)), b.like(x, -limit))
    elif dtype in _VANISHING:  # no negative zero: its pattern is NaN, which XLA would make of a negative number that rounds to zero
        x = b.select(b.compare("LE", b.unary("abs", x), b.like(x, _VANISHING[dtype])), b.like(x, 0), x)
    return b.emit("convert", [x], x.shape, dtype)


def _to_exponent(b: Builder, x: Value) -> Value:
    """The exponent of |x|, rounded to the nearer power of two and halfway up; NaN and infinity become 255, which is NaN."""
    bits = b.emit("bitcast_convert", [x], x.shape, torch.int32)
    field = b.binary("and", b.binary("shift_right_logical", bits, b.like(bits, 23)), b.like(bits, 0xFF))
    fraction = b.binary("and", bits, b.like(bits, 0x7FFFFF))
    half = b.like(bits, 0x400000)
    # Below the smallest normal float32 the lowest bit of the result is 0, and a tie goes to even.
    tie = b.binary("and", b.compare("EQ", fraction, half), b.compare("NE", field, b.like(bits, 0)))
    up = b.binary("or", b.compare("GT", fraction, half), tie)
    finite = b.compare("NE", field, b.like(bits, 0xFF))
    rounded = b.add(field, b.convert(b.binary("and", up, finite), torch.int32))
    return b.emit("bitcast_convert", [b.convert(rounded, torch.uint8)], x.shape, torch.float8_e8m0fnu)
