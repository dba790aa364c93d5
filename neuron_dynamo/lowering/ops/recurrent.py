"""Long short-term memory: one layer in one direction, forward and backward, after ATen's mkldnn_rnn_layer.

With gates i, f, g, o of W_ih x_t + b_ih + W_hh h_(t-1) + b_hh:  c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g),
h_t = sigmoid(o) tanh(c_t). What does not depend on the step before is one product over all steps; the rest is a loop, so that the
program does not grow with the sequence. Gates and cell state are float32 for float16 and bfloat16; h is rounded at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value, compute_dtype
from neuron_dynamo.lowering.contraction import dot_general
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import dynamic_slice, dynamic_update_slice, total, while_loop

aten = torch.ops.aten

_LSTM = 2
"""ideep::rnn_kind::LSTM, the only mode in which PyTorch traces this op."""


def _only_one_lstm_layer(mode: int, num_layers: int, bidirectional: bool) -> str | None:
    if mode != _LSTM or num_layers != 1 or bidirectional:
        return "the fused recurrent layer in another mode than one LSTM layer of one direction"
    return None


def _guard(*args: object) -> str | None:
    mode, _, num_layers, _, bidirectional = args[9:14]
    return _only_one_lstm_layer(mode, num_layers, bidirectional)  # type: ignore[arg-type]


def _guard_backward(*args: object) -> str | None:
    mode, _, num_layers, _, _, bidirectional = args[14:20]
    return _only_one_lstm_layer(mode, num_layers, bidirectional)  # type: ignore[arg-type]


def _over_steps(
    b: Builder,
    steps: int,
    downwards: bool,
    carried: Sequence[Value],
    body: Callable[[Value, list[Value]], list[Value]],
) -> list[Value]:
    """Run `body(t, carried)` for t = 0 .. steps - 1, or from the last to the first.

    A loop on the host. For the Neuron compiler, of which no word says that it takes stablehlo.while, every step is written out.
    """
    if not b.target.is_host:
        values = list(carried)
        for number in reversed(range(steps)) if downwards else range(steps):
            values = body(b.scalar(number, torch.int32), values)
        return values
    start, end, stride = (steps - 1, -1, -1) if downwards else (0, steps, 1)

    def more(values: list[Value]) -> Value:
        return b.compare("NE", values[0], b.scalar(end, torch.int32))

    def step(values: list[Value]) -> list[Value]:
        t, *rest = values
        return [b.add(t, b.scalar(stride, torch.int32)), *body(t, rest)]

    return while_loop(b, [b.scalar(start, torch.int32), *carried], more, step)[1:]


def _origin(b: Builder, t: Value) -> list[Value]:
    zero = b.scalar(0, torch.int32)
    return [t, zero, zero]


def _read(b: Builder, x: Value, t: Value) -> Value:
    """x[t] of x [steps, batch, width]."""
    return b.reshape(dynamic_slice(b, x, _origin(b, t), (1, *x.shape[1:])), x.shape[1:])


def _write(b: Builder, x: Value, t: Value, row: Value) -> Value:
    """x with x[t] = row."""
    return dynamic_update_slice(b, x, b.reshape(row, (1, *row.shape)), _origin(b, t))


def _product(b: Builder, x: Value, weight: Value, wide: torch.dtype) -> Value:
    """x [..., in] times weight [out, in] transposed, accumulated in `wide`."""
    return dot_general(b, x, weight, ((x.ndim - 1,), (1,)), out_dtype=wide)


def _gates(b: Builder, summed: Value) -> tuple[Value, Value, Value, Value]:
    """(i, f, g, o) [..., hidden] from their arguments side by side in the last dim."""
    last, hidden = summed.ndim - 1, summed.shape[-1] // 4
    i, f, g, o = (b.slice_dim(summed, last, n * hidden, (n + 1) * hidden) for n in range(4))
    return b.unary("logistic", i), b.unary("logistic", f), b.unary("tanh", g), b.unary("logistic", o)


def _from_input(b: Builder, x: Value, weight: Value, biases: Sequence[Value], wide: torch.dtype) -> Value:
    """W_ih x_t + b_ih + b_hh at every step, [steps, batch, 4 * hidden] in `wide`."""
    summed = _product(b, x, weight, wide)
    for bias in biases:
        summed = b.add(summed, b.value(bias, wide, summed.shape))
    return summed


def _time_first(b: Builder, x: Value, batch_first: bool) -> Value:
    """[batch, steps, width] as [steps, batch, width] if `batch_first`; its own inverse."""
    return b.transpose(x, (1, 0, 2)) if batch_first else x


@lowering(aten.mkldnn_rnn_layer.default, guard=_guard)
def lstm_layer(
    b: Builder,
    x: Value,
    w_ih: Value,
    w_hh: Value,
    b_ih: Value,
    b_hh: Value,
    h_start: Value,
    c_start: Value,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[Value, Value, Value, Value]:
    """x [steps, batch, in], states [1, batch, hidden] -> (h at every step, last h, last c, no workspace)."""
    wide = compute_dtype(x.dtype)
    x = _time_first(b, x, batch_first)
    steps, batch, _ = x.shape
    state = (batch, hidden_size)
    inputs = _from_input(b, x, w_ih, (b_ih, b_hh) if has_biases else (), wide)

    def step(t: Value, carried: list[Value]) -> list[Value]:
        h, c, output = carried
        i, f, g, o = _gates(b, b.add(_read(b, inputs, t), _product(b, h, w_hh, wide)))
        c = b.add(b.mul(f, c), b.mul(i, g))
        h = b.convert(b.mul(o, b.unary("tanh", c)), x.dtype)
        return [h, c, _write(b, output, t, h)]

    first = [b.convert(b.reshape(h_start, state), x.dtype), b.convert(b.reshape(c_start, state), wide), b.full((steps, *state), 0, x.dtype)]
    h, c, output = _over_steps(b, steps, reverse, first, step)
    h, c = (b.reshape(b.convert(v, s.dtype), s.shape) for v, s in ((h, h_start), (c, c_start)))
    return _time_first(b, output, batch_first), h, c, b.full((0,), 0, torch.uint8)


@lowering(aten.mkldnn_rnn_layer_backward.default, guard=_guard_backward)
def lstm_layer_backward(
    b: Builder,
    x: Value,
    w_ih: Value,
    w_hh: Value,
    b_ih: Value,
    b_hh: Value,
    h_start: Value,
    c_start: Value,
    output: Value,
    h_end: Value,
    c_end: Value,
    grad_output: Value | None,
    grad_h_end: Value | None,
    grad_c_end: Value | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    batch_first: bool,
    workspace: Value,
) -> tuple[Value | None, ...]:
    """Gradients of x, both weights, both biases, and the states before the first step.

    The gates are computed again, from the h that the forward gave out; the cell states in a loop of elementwise ops.
    """
    wide = compute_dtype(x.dtype)
    x, output = _time_first(b, x, batch_first), _time_first(b, output, batch_first)
    steps, batch, _ = x.shape
    state = (batch, hidden_size)
    start = b.convert(h_start, output.dtype)
    before = [b.slice_dim(output, 0, 1, steps), start] if reverse else [start, b.slice_dim(output, 0, 0, steps - 1)]
    h_before = b.concat(before if steps > 1 else [start], 0)
    summed = b.add(_from_input(b, x, w_ih, (b_ih, b_hh) if has_biases else (), wide), _product(b, h_before, w_hh, wide))
    i, f, g, o = _gates(b, summed)
    fresh = b.mul(i, g)

    def remember(t: Value, carried: list[Value]) -> list[Value]:
        c, cells = carried
        return [b.add(b.mul(_read(b, f, t), c), _read(b, fresh, t)), _write(b, cells, t, c)]

    first = [b.convert(b.reshape(c_start, state), wide), b.full((steps, *state), 0, wide)]
    c_before = _over_steps(b, steps, reverse, first, remember)[1]
    squashed = b.unary("tanh", b.add(b.mul(f, c_before), fresh))

    def complement(y: Value) -> Value:
        return b.sub(b.like(y, 1), y)

    # d loss / d argument = (d loss / d c) * slope for i, f, g and (d loss / d h) * slope for o.
    slope_i = b.mul(b.mul(g, i), complement(i))
    slope_f = b.mul(b.mul(c_before, f), complement(f))
    slope_g = b.mul(i, complement(b.mul(g, g)))
    slope_o = b.mul(b.mul(squashed, o), complement(o))
    c_from_h = b.mul(o, complement(b.mul(squashed, squashed)))
    upstream = None if grad_output is None else b.convert(_time_first(b, grad_output, batch_first), wide)

    def step(t: Value, carried: list[Value]) -> list[Value]:
        d_h, d_c, d_summed = carried
        if upstream is not None:
            d_h = b.add(d_h, _read(b, upstream, t))
        d_c = b.add(d_c, b.mul(d_h, _read(b, c_from_h, t)))
        parts = [b.mul(d_c, _read(b, slope, t)) for slope in (slope_i, slope_f, slope_g)]
        row = b.concat([*parts, b.mul(d_h, _read(b, slope_o, t))], 1)
        d_h = dot_general(b, b.convert(row, w_hh.dtype), w_hh, ((1,), (0,)), out_dtype=wide)
        return [d_h, b.mul(d_c, _read(b, f, t)), _write(b, d_summed, t, row)]

    ends = [b.full(state, 0, wide) if v is None else b.convert(b.reshape(v, state), wide) for v in (grad_h_end, grad_c_end)]
    d_h, d_c, d_summed = _over_steps(b, steps, not reverse, [*ends, b.full(summed.shape, 0, wide)], step)
    narrow = b.convert(d_summed, x.dtype)
    rows = ((0, 1), (0, 1))
    d_bias = total(b, d_summed, (0, 1))
    results = (
        _time_first(b, dot_general(b, narrow, w_ih, ((2,), (0,)), out_dtype=wide), batch_first),
        dot_general(b, narrow, x, rows, out_dtype=wide),
        dot_general(b, narrow, h_before, rows, out_dtype=wide),
        d_bias,
        d_bias,
        b.reshape(d_h, h_start.shape),
        b.reshape(d_c, c_start.shape),
    )
    return tuple(None if spec is None else b.convert(result, spec.dtype) for result, spec in zip(results, b.outs, strict=True))
