"""StableHLO ops with dimension numbers or regions, as functions over a Builder. Each follows the op of its name in the
StableHLO specification; shapes are computed here, so that a rule states only what is particular to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.builder import Builder, Scalar, Value, compute_dtype
from neuron_dynamo.lowering.combining import Body, fold, fold_windows
from neuron_dynamo.lowering.exact_integers import is_integer, limb_bits, sum_by_limbs

Combiner = Callable[[Builder, Value, Value], Value]


def logaddexp(b: Builder, x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) without overflow; equal infinities give themselves."""
    if x.dtype.is_complex:
        return _complex_logaddexp(b, x, y)
    larger = b.max(x, y)
    apart = b.neg(b.unary("abs", b.sub(x, y)))
    total = b.add(larger, b.unary("log_plus_one", b.unary("exponential", apart)))
    return b.select(b.compare("EQ", x, y), b.add(x, b.like(x, math.log(2))), total)


def _complex_logaddexp(b: Builder, x: Value, y: Value) -> Value:
    """The same for complex numbers, which the real parts order."""
    left, right = (b.emit("real", [v], v.shape, v.dtype.to_real()) for v in (x, y))
    ordered = b.compare("GE", left, right)
    larger, smaller = b.select(ordered, x, y), b.select(ordered, y, x)
    total = b.add(larger, b.unary("log_plus_one", b.unary("exponential", b.sub(smaller, larger))))
    nothing = b.compare("EQ", b.max(left, right), b.like(left, -math.inf))
    return b.select(nothing, larger, total)


COMBINERS: dict[str, Combiner] = {
    "add": Builder.add,
    "mul": Builder.mul,
    "max": Builder.max,
    "min": Builder.min,
    "and": lambda b, x, y: b.binary("and", x, y),
    "or": lambda b, x, y: b.binary("or", x, y),
    "xor": lambda b, x, y: b.binary("xor", x, y),
    "logaddexp": logaddexp,
    "second": lambda b, x, y: y,
}


def lowest(dtype: torch.dtype) -> Scalar:
    """Identity of max: -inf, or the least integer, or False."""
    if dtype == torch.bool:
        return False
    return torch.iinfo(dtype).min if not dtype.is_floating_point and not dtype.is_complex else -math.inf


def highest(dtype: torch.dtype) -> Scalar:
    """Identity of min: inf, or the greatest integer, or True."""
    if dtype == torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def identity(kind: str, dtype: torch.dtype) -> Scalar:
    """Identity element of the combiner `kind` (a key of COMBINERS)."""
    if kind in ("max", "logaddexp"):
        return lowest(dtype)
    if kind == "min":
        return highest(dtype)
    if kind == "and":
        return True if dtype == torch.bool else -1
    return 1 if kind == "mul" else 0


def combiner_region(b: Builder, operation: object, index: int, kind: str, dtype: torch.dtype) -> None:
    """Fill a region of two scalars and one result with the combiner `kind`."""
    with b.region(operation, index, [((), dtype), ((), dtype)]) as (x, y):
        b.ret(COMBINERS[kind](b, x, y))


def normalise_dims(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Sorted non-negative dims; None or empty means all of them."""
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        return tuple(range(rank))
    return tuple(sorted({d % rank if rank else 0 for d in dims})) if rank else ()


def reduce(b: Builder, x: Value, dims: Sequence[int], kind: str, keepdim: bool = False, init: Scalar | None = None) -> Value:
    """Reduce over `dims` with the combiner `kind`, from its identity (or `init`). Does not widen the dtype."""
    dims = tuple(dims)
    shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
    result = x
    if dims and not _takes(b, kind):
        result = _reduce_in_another_way(b, x, dims, kind)
    elif dims:
        start = b.scalar(identity(kind, x.dtype) if init is None else init, x.dtype)
        op = b.op("reduce", [x, start], [(shape, x.dtype)], {"dimensions": mlir.i64s(dims)}, regions=1)
        combiner_region(b, op, 0, kind, x.dtype)
        result = Value(op.result, shape, x.dtype)
    return b.reshape(result, tuple(1 if d in dims else n for d, n in enumerate(x.shape))) if keepdim else result


_PLAIN = frozenset({"add", "mul", "max", "min"})
_AS_NUMBERS = {"or": "max", "and": "min", "max": "max", "min": "min"}


def _takes(b: Builder, kind: str) -> bool:
    return kind in _PLAIN or "reduce.any_body" in b.target.ops


def _reduce_in_another_way(b: Builder, x: Value, dims: Sequence[int], kind: str) -> Value:
    if x.dtype == torch.bool and kind in _AS_NUMBERS:
        start = int(identity(kind, torch.bool) is True)
        return b.convert(reduce(b, b.convert(x, torch.int32), dims, _AS_NUMBERS[kind], init=start), torch.bool)
    (result,) = fold(b, [x], [identity(kind, x.dtype)], dims, _body(b, kind))
    return result


def _body(b: Builder, kind: str) -> Body:
    return lambda left, right: [COMBINERS[kind](b, x, y) for x, y in zip(left, right, strict=True)]


def reduce_many(
    b: Builder,
    operands: Sequence[Value],
    inits: Sequence[Scalar],
    dims: Sequence[int],
    body: Callable[[list[Value], list[Value]], list[Value]],
) -> list[Value]:
    """Variadic reduce: `body(accumulators, elements)` returns the new accumulators, of one shape. It must be commutative, and the
    inits its identities."""
    if "reduce.variadic" not in b.target.ops:
        return fold(b, operands, inits, dims, body)
    shape = tuple(n for d, n in enumerate(operands[0].shape) if d not in dims)
    starts = [b.scalar(init, x.dtype) for x, init in zip(operands, inits, strict=True)]
    op = b.op("reduce", [*operands, *starts], [(shape, x.dtype) for x in operands], {"dimensions": mlir.i64s(dims)}, regions=1)
    count = len(operands)
    with b.region(op, 0, [((), x.dtype) for x in operands] * 2) as arguments:
        b.ret(*body(arguments[:count], arguments[count:]))
    return [Value(r, shape, x.dtype) for r, x in zip(op.results, operands, strict=True)]


def spread(b: Builder, reduced: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Undo a reduction's loss of dims: broadcast `reduced` (without `dims`) back to `shape`."""
    return b.broadcast(reduced, shape, [d for d in range(len(shape)) if d not in dims])


def total(b: Builder, x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    """Sum over dims, accumulated in torch's accumulation dtype and returned in it."""
    return reduce(b, b.convert(x, compute_dtype(x.dtype)), dims, "add", keepdim)


def reduce_window(
    b: Builder,
    x: Value,
    kind: str,
    init: Scalar,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    window_dilation: Sequence[int] | None = None,
    base_dilation: Sequence[int] | None = None,
) -> Value:
    """Windowed reduction over every dim of x (give 1 for dims that are not windowed)."""
    ones = [1] * x.ndim
    window_dilation = ones if window_dilation is None else window_dilation
    base_dilation = ones if base_dilation is None else base_dilation
    if "reduce_window.dilated" not in b.target.ops and any(d > 1 for d in base_dilation):
        zeros = [0] * x.ndim
        x, base_dilation = b.pad(x, init, zeros, zeros, [d - 1 for d in base_dilation]), ones
    if not _takes(b, kind) or ("reduce_window.dilated" not in b.target.ops and any(d > 1 for d in window_dilation)):
        inits, body = [init], _body(b, kind)
        return fold_windows(b, [x], inits, body, window=window, strides=strides, padding=padding, dilation=window_dilation)[0]
    shape = []
    for n, w, s, (lo, hi), wd, bd in zip(x.shape, window, strides, padding, window_dilation, base_dilation, strict=True):
        padded = ((n - 1) * bd + 1 if n else 0) + lo + hi
        reach = (w - 1) * wd + 1
        shape.append(max(0, (padded - reach) // s + 1) if padded >= reach else 0)
    attributes = {
        "window_dimensions": mlir.i64s(window),
        "window_strides": mlir.i64s(strides),
        "base_dilations": mlir.i64s(base_dilation),
        "window_dilations": mlir.i64s(window_dilation),
        "padding": mlir.pairs(padding),
    }
    op = b.op("reduce_window", [x, b.scalar(init, x.dtype)], [(shape, x.dtype)], attributes, regions=1)
    combiner_region(b, op, 0, kind, x.dtype)
    return Value(op.result, tuple(shape), x.dtype)


def gather(
    b: Builder,
    x: Value,
    indices: Value,
    *,
    offset_dims: Sequence[int],
    collapsed: Sequence[int],
    index_map: Sequence[int],
    slice_sizes: Sequence[int],
    shape: Sequence[int],
    operand_batching: Sequence[int] = (),
    indices_batching: Sequence[int] = (),
    index_vector_dim: int | None = None,
) -> Value:
    """stablehlo.gather; the index vector is the last dim of `indices` by default. Out of range starts are clamped."""
    vector = indices.ndim - 1 if index_vector_dim is None else index_vector_dim
    batching = (
        f"operand_batching_dims = {list(operand_batching)}, start_indices_batching_dims = {list(indices_batching)}, "
        if operand_batching
        else ""
    )
    numbers = (
        f"#stablehlo.gather<offset_dims = {list(offset_dims)}, collapsed_slice_dims = {list(collapsed)}, {batching}"
        f"start_index_map = {list(index_map)}, index_vector_dim = {vector}>"
    )
    attributes = {
        "dimension_numbers": mlir.parse(numbers),
        "slice_sizes": mlir.i64s(slice_sizes),
        "indices_are_sorted": mlir.boolean(False),
    }
    return b.emit("gather", [x, indices], shape, x.dtype, attributes)


def pick(b: Builder, x: Value, index: Value, dim: int) -> Value:
    """x at one integer index a row: `index` has x's shape without `dim`, or any shape where x is 1-d. Clamped into range."""
    others = [d for d in range(x.ndim) if d != dim]
    return gather(
        b,
        x,
        b.reshape(index, (*index.shape, 1)),
        offset_dims=(),
        collapsed=(dim,),
        index_map=(dim,),
        slice_sizes=[1] * x.ndim,
        shape=index.shape,
        operand_batching=others,
        indices_batching=tuple(range(len(others))),
    )


def scatter(
    b: Builder,
    x: Value,
    indices: Value,
    updates: Value,
    kind: str,
    *,
    window_dims: Sequence[int],
    inserted: Sequence[int],
    index_map: Sequence[int],
    input_batching: Sequence[int] = (),
    indices_batching: Sequence[int] = (),
    unique: bool = False,
) -> Value:
    """stablehlo.scatter into x with the combiner `kind` ("second" overwrites). Out of range updates are dropped."""

    def again(x: Value, updates: Value, kind: str) -> Value:
        dims = {"input_batching": input_batching, "indices_batching": indices_batching}
        return scatter(b, x, indices, updates, kind, window_dims=window_dims, inserted=inserted, index_map=index_map, unique=unique, **dims)

    if x.dtype == torch.bool and kind in _AS_NUMBERS and "scatter.bool" not in b.target.ops:
        return b.convert(again(b.convert(x, torch.float32), b.convert(updates, torch.float32), _AS_NUMBERS[kind]), torch.bool)
    if kind == "add" and is_integer(x.dtype) and "scatter.integers" not in b.target.ops:
        bits = limb_bits(math.prod(indices.shape[:-1]))
        if bits is not None:
            return sum_by_limbs(b, x, updates, bits, lambda zeros, limbs: again(zeros, limbs, "add"))
    batching = (
        f"input_batching_dims = {list(input_batching)}, scatter_indices_batching_dims = {list(indices_batching)}, "
        if input_batching
        else ""
    )
    numbers = (
        f"#stablehlo.scatter<update_window_dims = {list(window_dims)}, inserted_window_dims = {list(inserted)}, {batching}"
        f"scatter_dims_to_operand_dims = {list(index_map)}, index_vector_dim = {indices.ndim - 1}>"
    )
    attributes = {
        "scatter_dimension_numbers": mlir.parse(numbers),
        "indices_are_sorted": mlir.boolean(False),
        "unique_indices": mlir.boolean(unique),
    }
    op = b.op("scatter", [x, indices, updates], [(x.shape, x.dtype)], attributes, regions=1)
    combiner_region(b, op, 0, kind, x.dtype)
    return Value(op.result, x.shape, x.dtype)


def sort(
    b: Builder, operands: Sequence[Value], dim: int, before: Callable[[list[Value], list[Value]], Value], stable: bool = True
) -> list[Value]:
    """Sort operands together along `dim`; `before(left, right)` gets one scalar of each operand per side."""
    attributes = {"dimension": mlir.i64(dim), "is_stable": mlir.boolean(stable)}
    op = b.op("sort", operands, [(x.shape, x.dtype) for x in operands], attributes, regions=1)
    with b.region(op, 0, [((), x.dtype) for x in operands for _ in range(2)]) as arguments:
        b.ret(before(arguments[0::2], arguments[1::2]))
    return [Value(r, x.shape, x.dtype) for r, x in zip(op.results, operands, strict=True)]


def while_loop(
    b: Builder,
    carried: Sequence[Value],
    condition: Callable[[list[Value]], Value],
    body: Callable[[list[Value]], list[Value]],
) -> list[Value]:
    """Repeat `body` on the carried values while `condition` (0-d bool) holds."""
    kinds = [(v.shape, v.dtype) for v in carried]
    op = b.op("while", carried, kinds, regions=2)
    with b.region(op, 0, kinds) as arguments:
        b.ret(condition(arguments))
    with b.region(op, 1, kinds) as arguments:
        b.ret(*body(arguments))
    return [Value(r, s, d) for r, (s, d) in zip(op.results, kinds, strict=True)]


def dynamic_slice(b: Builder, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Slice of static `sizes` at 0-d integer `starts` (clamped into range)."""
    return b.emit("dynamic_slice", [x, *starts], sizes, x.dtype, {"slice_sizes": mlir.i64s(sizes)})


def dynamic_update_slice(b: Builder, x: Value, update: Value, starts: Sequence[Value]) -> Value:
    """x with `update` written at 0-d integer `starts` (clamped into range)."""
    return b.emit("dynamic_update_slice", [x, update, *starts], x.shape, x.dtype)


def triangular_solve(b: Builder, a: Value, y: Value, *, lower: bool, unit: bool = False) -> Value:
    """x with a x = y: a [..., n, n] of which one triangle is read (`unit`: its diagonal as ones), y [..., n, k], equal batch dims."""
    attributes = {
        "left_side": mlir.boolean(True),
        "lower": mlir.boolean(lower),
        "unit_diagonal": mlir.boolean(unit),
        "transpose_a": mlir.parse("#stablehlo<transpose NO_TRANSPOSE>"),
    }
    return b.emit("triangular_solve", [a, y], y.shape, y.dtype, attributes)


def custom_call(b: Builder, target: str, operands: Sequence[Value], shape: Sequence[int], dtype: torch.dtype, text: str = "") -> Value:
    """A pure custom call with one result. `text` are further attributes in MLIR's dictionary syntax."""
    attributes = {"call_target_name": mlir.string(target)}
    for named in mlir.parse("{" + text + "}"):
        attributes[named.name] = named.attr
    return b.emit("custom_call", operands, shape, dtype, attributes)


def composite(
    b: Builder,
    name: str,
    operands: Sequence[Value],
    body: Callable[[list[Value]], list[Value]],
    outputs: Sequence[tuple[Sequence[int], torch.dtype]],
    text: str = "",
) -> list[Value]:
    """stablehlo.composite `name` with its decomposition; `text` are composite attributes in MLIR's dictionary syntax."""
    from neuron_dynamo.lowering.program import TensorSpec

    inputs = [TensorSpec(v.shape, v.dtype) for v in operands]
    symbol = b.function(name, inputs, [TensorSpec(tuple(s), d) for s, d in outputs], body)
    attributes = {
        "name": mlir.string(name),
        "decomposition": mlir.parse(f"@{symbol}"),
        "composite_attributes": mlir.parse("{" + text + "}"),
        "version": mlir.i32(1),
    }
    op = b.op("composite", operands, outputs, attributes)
    return [Value(r, tuple(s), d) for r, (s, d) in zip(op.results, outputs, strict=True)]
