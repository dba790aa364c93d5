"""Random ops of compiled graphs: what passes/rng.py puts in place of PyTorch's.

`rng_state` and `draw` take from PyTorch's default generator and run on the host. The `random_*` ops are pure functions of a
state and of their index within the graph, so that they can be lowered, recomputed and cached; what stands here is their
meaning, and their execution where a target cannot take them. lowering/ops/random.py makes the same bits.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): additions,
rotations and xors of 32-bit words, which vectorise everywhere and need no 64-bit or generator instructions of a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np

    Words = np.ndarray[Any, np.dtype[np.uint32]]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
ROUNDS = 20
SCHEMAS = {
    "rng_state": "() -> Tensor",
    "draw": "(str method, int index, SymInt[] size, SymInt[] stride, ScalarType dtype, Scalar[] params) -> Tensor",
    "random_uniform": "(Tensor state, int index, SymInt[] size, ScalarType dtype) -> Tensor",
    "random_normal": "(Tensor state, int index, SymInt[] size, ScalarType dtype) -> Tensor",
    "random_exponential": "(Tensor state, int index, SymInt[] size, ScalarType dtype) -> Tensor",
    "random_bernoulli": "(Tensor state, int index, SymInt[] size, float p) -> Tensor",
    "random_integers": "(Tensor state, int index, SymInt[] size, int low, int high, ScalarType dtype) -> Tensor",
}
_library: Any = torch.library.Library("neuron_dynamo", "FRAGMENT")  # type: ignore[no-untyped-call]


def _define(name: str, fake: Callable[..., torch.Tensor]) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    """Register an op of SCHEMAS with its eager implementation and the one for fake tensors."""

    def register(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        impure = (torch.Tag.nondeterministic_seeded,) if name in ("rng_state", "draw") else ()
        _library.define(name + SCHEMAS[name], tags=impure)
        _library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"neuron_dynamo::{name}", fake, lib=_library)
        return function

    return register


def _like_size(state: torch.Tensor, index: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype)


@_define("rng_state", lambda: torch.empty(2, dtype=torch.int64))
def rng_state() -> torch.Tensor:
    """Two fresh 64-bit words (int64[2]) from PyTorch's default CPU generator: new on each call, fixed under torch.manual_seed."""
    return torch.empty(2, dtype=torch.int64).random_(-(2**63), None)


def _empty(method: str, index: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, params: Sequence[Any]) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype) if stride else torch.empty(size, dtype=dtype)


@_define("draw", _empty)
def draw(method: str, index: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, params: Sequence[Any]) -> torch.Tensor:
    """What eager PyTorch's in-place `method` (say `bernoulli_`) with `params` makes of an empty tensor; no strides: contiguous.

    `index` sets equal draws of a graph apart, so that no pass may merge them.
    """
    filled: torch.Tensor = getattr(_empty(method, index, size, stride, dtype, params), method)(*params)
    return filled


@_define("random_uniform", _like_size)
def random_uniform(state: torch.Tensor, index: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Uniform over [0, 1): multiples of 2**-digits, with the digits of the dtype's significand."""
    import numpy as np

    first, second = _words(state, index, 0, math.prod(size))
    if dtype == torch.float64:
        return _shaped((_wide(first, second) >> np.uint64(11)).astype(np.float64) * 2.0**-53, size, dtype)
    return _shaped((first >> np.uint32(32 - digits(dtype))).astype(np.float32) * np.float32(2.0 ** -digits(dtype)), size, dtype)


@_define("random_normal", _like_size)
def random_normal(state: torch.Tensor, index: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Standard normal, by Box and Muller's transform; in float32 up to 6.7 sigma, in float64 up to 8.5.

    Half the circle is enough: the sine takes each value as often there as on the whole.
    """
    import numpy as np

    first, second = _words(state, index, 0, math.prod(size))
    if dtype == torch.float64:
        third, fourth = _words(state, index, 1, math.prod(size))
        radius = ((_wide(first, second) >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
        turn = ((_wide(third, fourth) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return _shaped(np.sqrt(np.log(radius) * -2.0) * np.sin((turn - 0.5) * math.pi), size, dtype)
    radius = (first.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    turn = ((second >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return _shaped(np.sqrt(np.log(radius) * np.float32(-2)) * np.sin((turn - np.float32(0.5)) * np.float32(math.pi)), size, dtype)


@_define("random_exponential", _like_size)
def random_exponential(state: torch.Tensor, index: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Exponential of rate 1, never 0, with full resolution near 0 and in the tail.

    One word is a probability of (0, 1/2]; a bit of the other word chooses whether the result exceeds or falls short of its
    quantile.
    """
    import numpy as np

    first, second = _words(state, index, 0, math.prod(size))
    if dtype == torch.float64:
        half = ((_wide(first, second) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-53
    else:
        half = (first.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-33)
    return _shaped(-np.where((second & np.uint32(1)).astype(bool), np.log(half), np.log1p(-half)), size, dtype)


@_define("random_bernoulli", lambda state, index, size, p: torch.empty(size, dtype=torch.bool))
def random_bernoulli(state: torch.Tensor, index: int, size: Sequence[int], p: float) -> torch.Tensor:
    """True with probability p, in steps of 2**-32."""
    import numpy as np

    threshold = bernoulli_threshold(p)
    if isinstance(threshold, bool):
        return torch.full(tuple(size), threshold)
    return torch.from_numpy(_words(state, index, 0, math.prod(size))[0] < np.uint32(threshold)).reshape(tuple(size))


@_define("random_integers", lambda state, index, size, low, high, dtype: torch.empty(size, dtype=dtype))
def random_integers(state: torch.Tensor, index: int, size: Sequence[int], low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """Integers of [low, high), from 64 bits each, so that none is favoured by more than (high - low) * 2**-64."""
    import numpy as np

    first, second = _words(state, index, 0, math.prod(size))
    span = np.uint64(high - low)
    if high - low <= 2**32:
        # The upper half of the product of span and both words as one fraction.
        offset = (first.astype(np.uint64) * span + (second.astype(np.uint64) * span >> np.uint64(32))) >> np.uint64(32)
    else:
        offset = _wide(first, second) % span
    return torch.from_numpy((offset + np.uint64(low % 2**64)).view(np.int64)).reshape(tuple(size)).to(dtype)


def bernoulli_threshold(p: float) -> int | bool:
    """A 32-bit word below this number means True; a bool where all of them do, or none."""
    threshold = round(p * 2**32)
    return threshold > 0 if not 0 < threshold < 2**32 else threshold


def digits(dtype: torch.dtype) -> int:
    """Bits of a float dtype's significand, the hidden one included."""
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def _shaped(values: Any, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(values).reshape(tuple(size)).to(dtype)


def _wide(high: Words, low: Words) -> Any:
    import numpy as np

    return high.astype(np.uint64) << np.uint64(32) | low


def _words(state: torch.Tensor, index: int, block: int, count: int) -> tuple[Words, Words]:
    """Two random words for each of `count` elements, in row-major order. Each (state, index, block) is a stream of its own."""
    import numpy as np

    seed = state.detach().numpy().view(np.uint32)
    key = threefry((seed[0:1], seed[1:2]), (seed[2:3] ^ np.uint32(index), seed[3:4] ^ np.uint32(block)))
    element = np.arange(count, dtype=np.uint64)
    return threefry(key, (element.astype(np.uint32), (element >> np.uint64(32)).astype(np.uint32)))


def threefry(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Threefry-2x32-20 of uint32 arrays; broadcasts."""
    import numpy as np

    schedule = (*key, key[0] ^ key[1] ^ np.uint32(PARITY))
    x, y = counter[0] + schedule[0], counter[1] + schedule[1]
    for number in range(ROUNDS):
        rotation = ROTATIONS[number // 4 % 2][number % 4]
        x = x + y
        y = (y << np.uint32(rotation) | y >> np.uint32(32 - rotation)) ^ x
        if number % 4 == 3:
            injection = number // 4 + 1
            x = x + schedule[injection % 3]
            y = y + schedule[(injection + 1) % 3] + np.uint32(injection)
    return x, y
