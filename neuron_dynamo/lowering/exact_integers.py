"""Integer sums, exact on targets whose scatters and products of integers compute in float32, which holds integers up to 2^24."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Value

MANTISSA = 24
NARROWEST_LIMB = 8
LARGEST_PRODUCT = 2**24
"""Elements of the unreduced product of two integer matrices, beyond which a dot is kept."""


def is_integer(dtype: torch.dtype) -> bool:
    """Whether a dtype holds numbers that are all integers."""
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


def limb_bits(terms: int) -> int | None:
    """Bits of which `terms` numbers have a sum that float32 holds; None where they would be too few to be worth it."""
    bits = MANTISSA - max(terms - 1, 0).bit_length()
    return bits if bits >= NARROWEST_LIMB else None


def sum_by_limbs(b: Builder, x: Value, updates: Value, bits: int, scatter_add: Callable[[Value, Value], Value]) -> Value:
    """x plus what `scatter_add(zeros, updates)` makes of float32 tensors, for integers, wrapping: limb by limb of `bits` bits."""
    total = x
    width = 8 * x.dtype.itemsize
    for shift in range(0, width, bits):
        limb = b.binary("shift_right_logical", updates, b.like(updates, shift)) if shift else updates
        if bits < width:
            limb = b.binary("and", limb, b.like(limb, 2**bits - 1))
        part = b.convert(scatter_add(b.full(x.shape, 0, torch.float32), b.convert(limb, torch.float32)), x.dtype)
        total = b.add(total, b.binary("shift_left", part, b.like(part, shift)) if shift else part)
    return total


def products(
    b: Builder, x: Value, y: Value, contract: tuple[Sequence[int], Sequence[int]], batch: tuple[Sequence[int], Sequence[int]]
) -> tuple[Value, tuple[int, ...]] | None:
    """The products whose sums over the dims given are dot_general(x, y), [batch, free of x, free of y, contracted].

    None if they are too many."""
    free_x = [d for d in range(x.ndim) if d not in batch[0] and d not in contract[0]]
    free_y = [d for d in range(y.ndim) if d not in batch[1] and d not in contract[1]]
    shape = [x.shape[d] for d in (*batch[0], *free_x)] + [y.shape[d] for d in free_y] + [x.shape[d] for d in contract[0]]
    if math.prod(shape) > LARGEST_PRODUCT:
        return None
    lead, last = len(batch[0]), len(shape) - len(contract[0])
    places_x = [*range(lead + len(free_x)), *range(last, len(shape))]
    places_y = [*range(lead), *range(lead + len(free_x), len(shape))]
    left = b.broadcast(b.transpose(x, [*batch[0], *free_x, *contract[0]]), shape, places_x)
    right = b.broadcast(b.transpose(y, [*batch[1], *free_y, *contract[1]]), shape, places_y)
    return b.mul(left, right), tuple(range(last, len(shape)))
