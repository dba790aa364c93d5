"""Connectionist temporal classification (neuron_dynamo/ctc.py) and its gradient. Definition: Graves et al., "Connectionist temporal
classification", ICML 2006, equations 6 to 16, as aten/src/ATen/native/LossCTC.cpp computes them: logarithms in the tensor's own dtype.

Labels interleaved with blanks are states [N, 2 S + 1]. Alphas and betas of states past the last of a row mean nothing, and reach none
that counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from neuron_dynamo.ctc import CTC_LOSS, CTC_LOSS_BACKWARD
from neuron_dynamo.lowering import matrices as mat
from neuron_dynamo.lowering.builder import Builder, Value
from neuron_dynamo.lowering.registry import lowering
from neuron_dynamo.lowering.structured import gather, reduce, scatter
from neuron_dynamo.target import Target


def _guard(log_probs: Any, *_: Any, target: Target) -> str | None:
    return mat.too_many_steps(log_probs.shape[0], target)


def _guard_backward(grad: Any, log_probs: Any, *_: Any, target: Target) -> str | None:
    return mat.too_many_steps(log_probs.shape[0], target)


def _states(b: Builder, labels: Value, blank: int) -> Value:
    """[N, 2 S + 1]: a blank, then each label and a blank."""
    return b.pad(labels, blank, [0, 1], [0, int(labels.shape[1] > 0)], [0, 1])


def _emissions(b: Builder, log_probs: Value, states: Value) -> Value:
    """log_probs [T, N, C] of each state: [T, N, L]."""
    steps = log_probs.shape[0]
    return gather(
        b,
        log_probs,
        b.unsqueeze(states, 2),
        offset_dims=[0],
        collapsed=[2],
        index_map=[2],
        slice_sizes=[steps, 1, 1],
        shape=(steps, *states.shape),
        operand_batching=[1],
        indices_batching=[0],
    )


def _shifted(b: Builder, x: Value, by: int) -> Value:
    """x [N, L] with what stood `by` places before (or, negative, after) each state; nothing (minus infinity) where there is none."""
    return b.pad(x, -math.inf, [0, by], [0, -by])


def _distinct(b: Builder, states: Value, by: int) -> Value:
    """Whether the state `by` places before has another label; the ends do not matter, for nothing comes from there."""
    return b.compare("NE", states, b.pad(states, 0, [0, by], [0, -by]))


def _log_sum(b: Builder, *terms: Value) -> Value:
    """log of the sum of exponentials; minus infinity where all terms are."""
    largest = terms[0]
    for term in terms[1:]:
        largest = b.max(largest, term)
    largest = b.select(b.compare("EQ", largest, b.like(largest, -math.inf)), b.like(largest, 0), largest)
    total = b.unary("exponential", b.sub(terms[0], largest))
    for term in terms[1:]:
        total = b.add(total, b.unary("exponential", b.sub(term, largest)))
    return b.add(b.unary("log", total), largest)


def _advance(b: Builder, before: Value, emission: Value, distinct: Value, by: int) -> Value:
    """Alphas after one more step (by = 1), or betas (by = -1): from the state itself, its neighbour, and the one behind a blank between
    distinct labels."""
    nothing = b.like(before, -math.inf)
    skipped = b.select(distinct, _shifted(b, before, 2 * by), nothing)
    return b.add(_log_sum(b, before, _shifted(b, before, by), skipped), emission)


def _start(b: Builder, place: Value, dtype: torch.dtype) -> Value:
    """What comes before the first alpha, or after the last beta: certainty (zero) where `place` holds. One step from it, paths stand
    there or in the neighbour."""
    return b.select(place, b.full(place.shape, 0, dtype), b.full(place.shape, -math.inf, dtype))


@lowering(CTC_LOSS, guard=_guard)
def ctc_loss(
    b: Builder, log_probs: Value, labels: Value, input_lengths: Value, target_lengths: Value, blank: int, zero_infinity: bool
) -> tuple[Value, Value | None]:
    states = _states(b, labels, blank)
    emissions = _emissions(b, log_probs, states)
    distinct = _distinct(b, states, 2)
    taken, given = b.convert(input_lengths, mat.INDEX), b.convert(target_lengths, mat.INDEX)
    place = mat.position(b, states.shape, 1)

    def step(number: Value, values: list[Value]) -> list[Value]:
        alpha, *kept = values
        after = _advance(b, alpha, mat.one_at(b, emissions, 0, number), distinct, 1)
        alpha = b.select(_runs(b, number, taken, alpha.shape), after, alpha)
        return [alpha, *(mat.put_at(b, alphas, alpha, 0, number) for alphas in kept)]

    kept = [b.full(emissions.shape, -math.inf, log_probs.dtype)] if b.used[1] else []
    start = _start(b, b.compare("EQ", place, b.like(place, 0)), log_probs.dtype)
    alpha, *kept = mat.counted(b, emissions.shape[0], [start, *kept], step)
    end = b.add(given, given)
    last = b.binary("or", mat.at(b, place, end), mat.at(b, b.add(place, b.like(place, 1)), end))
    ends = b.select(last, alpha, b.like(alpha, -math.inf))
    top = reduce(b, ends, (1,), "max")
    top = b.select(b.compare("EQ", top, b.like(top, -math.inf)), b.like(top, 0), top)
    total = reduce(b, b.unary("exponential", b.sub(ends, mat.spread(b, top, ends.shape))), (1,), "add")
    return b.neg(b.add(b.unary("log", total), top)), b.transpose(kept[0], (1, 0, 2)) if kept else None


def _runs(b: Builder, step: Value, taken: Value, shape: Sequence[int]) -> Value:
    """Whether each row takes `step`: of `shape`."""
    return mat.spread(b, b.compare("LT", mat.spread(b, step, taken.shape), taken), shape)


@lowering(CTC_LOSS_BACKWARD, guard=_guard_backward)
def ctc_loss_backward(
    b: Builder,
    grad: Value,
    log_probs: Value,
    labels: Value,
    input_lengths: Value,
    target_lengths: Value,
    loss: Value,
    alpha: Value,
    blank: int,
    zero_infinity: bool,
) -> Value:
    steps, batch, _ = log_probs.shape
    if not log_probs.numel:
        return log_probs
    states = _states(b, labels, blank)
    emissions = _emissions(b, log_probs, states)
    distinct = b.pad(_distinct(b, states, 2), 0, [0, -2], [0, 2])
    taken, given = b.convert(input_lengths, mat.INDEX), b.convert(target_lengths, mat.INDEX)

    def step(count: Value, values: list[Value]) -> list[Value]:
        beta, betas = values
        number = b.sub(b.scalar(steps - 1, mat.INDEX), count)
        after = _advance(b, beta, mat.one_at(b, emissions, 0, number), distinct, -1)
        beta = b.select(_runs(b, number, taken, beta.shape), after, beta)
        return [beta, mat.put_at(b, betas, beta, 0, number)]

    place = mat.position(b, states.shape, 1)
    start = _start(b, mat.at(b, place, b.add(given, given)), log_probs.dtype)
    _, betas = mat.counted(b, steps, [start, b.full(emissions.shape, -math.inf, log_probs.dtype)], step)

    through = b.add(b.transpose(alpha, (1, 0, 2)), betas)
    odds = b.sub(b.add(through, mat.spread(b, loss, through.shape, (1,))), emissions)
    posterior = _by_class(b, b.unary("exponential", odds), labels, log_probs, blank)
    # Of a class of probability zero, or a row without a path, ATen's difference of infinities is NaN.
    lost = b.sub(mat.spread(b, loss, log_probs.shape, (1,)), log_probs)
    posterior = b.select(b.compare("LT", lost, b.like(lost, math.inf)), posterior, b.like(posterior, math.nan))
    slope = b.mul(b.sub(b.unary("exponential", log_probs), posterior), mat.spread(b, grad, log_probs.shape, (1,)))
    flows = b.compare("LT", mat.position(b, (steps, batch), 0), mat.spread(b, taken, (steps, batch), (1,)))
    if zero_infinity:
        possible = b.compare("NE", loss, b.like(loss, math.inf))
        flows = mat.both(b, flows, mat.spread(b, possible, flows.shape, (1,)))
    return mat.where(b, mat.spread(b, flows, slope.shape), slope)


def _by_class(b: Builder, weights: Value, labels: Value, log_probs: Value, blank: int) -> Value:
    """Sums over the states [T, N, L] of each class: [T, N, C]."""
    classes = mat.position(b, log_probs.shape, 2)
    blanks = reduce(b, b.slice_dim(weights, 2, 0, weights.shape[2], 2), (2,), "add")
    sums = b.select(
        b.compare("EQ", classes, b.like(classes, blank)), mat.spread(b, blanks, classes.shape), b.full(classes.shape, 0, weights.dtype)
    )
    if not labels.numel:
        return sums
    return scatter(
        b,
        sums,
        b.unsqueeze(labels, 2),
        b.slice_dim(weights, 2, 1, weights.shape[2], 2),
        "add",
        window_dims=[0],
        inserted=[2],
        index_map=[2],
        input_batching=[1],
        indices_batching=[0],
    )
