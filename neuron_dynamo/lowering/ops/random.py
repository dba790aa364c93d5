"""Random numbers: the `random_*` ops of runtime/draw.py, bit for bit the words that their eager implementations make.

The generator is arithmetic on 32-bit words: it runs on every target, and on XLA CPU several times faster than the backend's own
expansion of stablehlo.rng_bit_generator. It stands in a private function for each number of elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from neuron_dynamo.lowering import mlir
from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.program import TensorSpec
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.runtime.draw import PARITY, ROTATIONS, ROUNDS, bernoulli_threshold, digits
from neuron_dynamo.target import Target

aten = torch.ops.aten
neuron_dynamo = torch.ops.neuron_dynamo
Word = torch.uint32

_generators: WeakKeyDictionary[Builder, dict[int, str]] = WeakKeyDictionary()


def _threefry(b: Builder, key: tuple[Value, Value], counter: tuple[Value, Value]) -> tuple[Value, Value]:
    """Threefry-2x32-20 on words of one shape: the counter encrypted under the key."""

    def xor(x: Value, y: Value) -> Value:
        return b.binary("xor", x, y)

    schedule = (*key, xor(xor(*key), b.like(key[0], PARITY)))
    x, y = b.add(counter[0], schedule[0]), b.add(counter[1], schedule[1])
    for number in range(ROUNDS):
        rotation = ROTATIONS[number // 4 % 2][number % 4]
        x = b.add(x, y)
        left = b.binary("shift_left", y, b.like(y, rotation))
        right = b.binary("shift_right_logical", y, b.like(y, 32 - rotation))
        y = xor(b.binary("or", left, right), x)
        if number % 4 == 3:
            injection = number // 4 + 1
            x = b.add(x, schedule[injection % 3])
            y = b.add(y, b.add(schedule[(injection + 1) % 3], b.like(y, injection)))
    return x, y


def _generator(b: Builder, count: int) -> str:
    """Symbol of a function (seed word, seed word, seed word, seed word) -> two words for each of `count` elements."""
    known = _generators.setdefault(b, {})
    if count not in known:
        scalar, words = TensorSpec((), Word), TensorSpec((count,), Word)

        def body(seed: list[Value]) -> list[Value]:
            key = _threefry(b, (seed[0], seed[1]), (seed[2], seed[3]))
            spread = (b.broadcast(key[0], (count,), ()), b.broadcast(key[1], (count,), ()))
            return list(_threefry(b, spread, (b.iota((count,), 0, Word), b.full((count,), 0, Word))))

        known[count] = b.function("threefry2x32", [scalar] * 4, [words] * 2, body)
    return known[count]


def _words(b: Builder, state: Value, index: int, block: int = 0) -> tuple[Value, Value]:
    """Two words for each element of the result, flat. Each (state, index, block) is a stream of its own."""
    seed = b.reshape(b.emit("bitcast_convert", [state], (2, 2), Word), (4,))
    parts = [b.reshape(b.slice(seed, [i], [i + 1]), ()) for i in range(4)]
    parts[2] = b.binary("xor", parts[2], b.scalar(index, Word))
    parts[3] = b.binary("xor", parts[3], b.scalar(block, Word))
    count = math.prod(b.out.shape)
    kind = mlir.tensor_type((count,), Word)
    call = mlir.create("func.call", [kind, kind], [p.ir for p in parts], {"callee": mlir.parse(f"@{_generator(b, count)}")}, 0)
    first, second = call.results
    return Value(first, (count,), Word), Value(second, (count,), Word)


def _wide(b: Builder, high: Value, low: Value) -> Value:
    high, low = b.convert(high, torch.uint64), b.convert(low, torch.uint64)
    return b.binary("or", b.binary("shift_left", high, b.like(high, 32)), low)


def _number(b: Builder, word: Value, drop: int, offset: float, scale: float, dtype: torch.dtype) -> Value:
    """((word >> drop) + offset) * scale in `dtype`."""
    if drop:
        word = b.binary("shift_right_logical", word, b.like(word, drop))
    number = b.convert(word, dtype)
    if offset:
        number = b.add(number, b.like(number, offset))
    return b.mul(number, b.like(number, scale))


def _shaped(b: Builder, x: Value) -> Value:
    return b.reshape(b.convert(x, b.out.dtype), b.out.shape)


def _countable(state: Any, index: int, size: Sequence[int], *_: Any) -> str | None:
    return "more elements than a 32-bit counter counts" if math.prod(size) > 2**32 else None


@lowering(neuron_dynamo.random_uniform.default, guard=_countable)
def random_uniform(b: Builder, state: Value, index: int, size: Sequence[int], dtype: torch.dtype) -> Value:
    first, second = _words(b, state, index)
    if dtype == torch.float64:
        return _shaped(b, _number(b, _wide(b, first, second), 11, 0, 2.0**-53, dtype))
    return _shaped(b, _number(b, first, 32 - digits(dtype), 0, 2.0 ** -digits(dtype), torch.float32))


@lowering(neuron_dynamo.random_normal.default, guard=_countable)
def random_normal(b: Builder, state: Value, index: int, size: Sequence[int], dtype: torch.dtype) -> Value:
    first, second = _words(b, state, index)
    if dtype == torch.float64:
        radius = _number(b, _wide(b, first, second), 11, 1, 2.0**-53, dtype)
        turn = _number(b, _wide(b, *_words(b, state, index, 1)), 12, 0.5, 2.0**-52, dtype)
    else:
        radius = _number(b, first, 0, 0.5, 2.0**-32, torch.float32)
        turn = _number(b, second, 9, 0.5, 2.0**-23, torch.float32)
    angle = b.mul(b.sub(turn, b.like(turn, 0.5)), b.like(turn, math.pi))
    sine = b.unary("sine", angle) if dtype == torch.float64 else _sine(b, angle)
    logarithm = b.unary("log", radius)
    return _shaped(b, b.mul(b.unary("sqrt", b.mul(logarithm, b.like(logarithm, -2))), sine))


def _sine(b: Builder, x: Value) -> Value:
    """Sine over [-pi/2, pi/2] to 2e-7, by its series: XLA CPU's own does not vectorise."""
    square = b.mul(x, x)
    series = b.like(x, -1 / math.factorial(11))
    for power in (9, 7, 5, 3, 1):
        series = b.add(b.mul(series, square), b.like(x, (-1) ** (power // 2) / math.factorial(power)))
    return b.mul(series, x)


@lowering(neuron_dynamo.random_exponential.default, guard=_countable)
def random_exponential(b: Builder, state: Value, index: int, size: Sequence[int], dtype: torch.dtype) -> Value:
    first, second = _words(b, state, index)
    if dtype == torch.float64:
        half = _number(b, _wide(b, first, second), 12, 0.5, 2.0**-53, dtype)
    else:
        half = _number(b, first, 0, 0.5, 2.0**-33, torch.float32)
    upper = b.convert(b.binary("and", second, b.like(second, 1)), torch.bool)
    return _shaped(b, b.neg(b.select(upper, b.unary("log", half), b.unary("log_plus_one", b.neg(half)))))


@lowering(neuron_dynamo.random_bernoulli.default, guard=_countable)
def random_bernoulli(b: Builder, state: Value, index: int, size: Sequence[int], p: float) -> Value:
    threshold = bernoulli_threshold(p)
    if isinstance(threshold, bool):
        return b.full(b.out.shape, threshold, torch.bool)
    word, _ = _words(b, state, index)
    return b.reshape(b.compare("LT", word, b.like(word, threshold)), b.out.shape)


def _drawable(state: Any, index: int, size: Sequence[int], low: int, high: int, dtype: torch.dtype, *, target: Target) -> str | None:
    if high - low > 2**32 and torch.uint64 not in target.dtypes:
        return f"target {target.name} has no 64-bit unsigned integers, which a range of more than 2^32 takes"
    return _countable(state, index, size)


@lowering(neuron_dynamo.random_integers.default, guard=_drawable)
def random_integers(b: Builder, state: Value, index: int, size: Sequence[int], low: int, high: int, dtype: torch.dtype) -> Value:
    first, second = _words(b, state, index)
    span = high - low
    if span < 2**32:
        # The upper half of span times both words as one fraction, in 32-bit arithmetic: of every target, and quick.
        lower = b.mul(first, b.like(first, span))
        total = b.add(lower, _multiply_high(b, second, span))
        carry = b.convert(b.compare("LT", total, lower), Word)
        offset = b.convert(b.add(_multiply_high(b, first, span), carry), torch.int64)
    elif span == 2**32:
        offset = b.convert(first, torch.int64)
    else:
        wide = _wide(b, first, second)
        offset = b.convert(b.binary("remainder", wide, b.like(wide, span)), torch.int64)
    return _shaped(b, b.add(offset, b.like(offset, low)))


def _multiply_high(b: Builder, word: Value, factor: int) -> Value:
    """Upper 32 bits of a word times a 32-bit constant, from products of their halves."""

    def high(x: Value) -> Value:
        return b.binary("shift_right_logical", x, b.like(x, 16))

    def low(x: Value) -> Value:
        return b.binary("and", x, b.like(x, 0xFFFF))

    def times(x: Value, constant: int) -> Value:
        return b.mul(x, b.like(x, constant))

    top, bottom = factor >> 16, factor & 0xFFFF
    middle = b.add(times(high(word), bottom), high(times(low(word), bottom)))
    other = b.add(times(low(word), top), low(middle))
    return b.add(times(high(word), top), b.add(high(middle), high(other)))


@lowering(aten.native_dropout_backward.default)
def native_dropout_backward(b: Builder, grad: Value, mask: Value, scale: float) -> Value:
    noise = b.convert(mask, b.out.dtype)
    return b.mul(b.convert(grad, b.out.dtype), b.mul(noise, b.like(noise, scale)))
