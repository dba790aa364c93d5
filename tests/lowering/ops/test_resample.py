"""Resizing and edge padding against eager PyTorch, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check, check_text


def _check_all(shape: tuple[int, ...], *options: dict[str, Any], dtype: torch.dtype = torch.float64) -> None:
    torch.manual_seed(0)

    def step(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        outs = [F.interpolate(x, **one) for one in options]
        return outs, [torch.autograd.grad(o, [x], torch.arange(o.numel(), dtype=o.dtype).reshape(o.shape) / 8) for o in outs]

    check(step, torch.randn(shape, dtype=dtype))


SIZES: tuple[dict[str, Any], ...] = (
    {"scale_factor": 2},
    {"scale_factor": 0.5},
    {"size": 7},
    {"size": 3},
    {"scale_factor": 1.7, "recompute_scale_factor": False},
)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_2d(mode: str) -> None:
    _check_all((2, 2, 6, 4), *({"mode": mode, **size} for size in SIZES))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_2d_other_ways(mode: str) -> None:
    ways: tuple[dict[str, Any], ...] = ({"size": (9, 1), "align_corners": True}, {"size": (4, 11), "antialias": True})
    _check_all((1, 2, 9, 8), *({"mode": mode, **way} for way in ways))


@pytest.mark.parametrize(
    ("shape", "mode"), [((1, 2, 5), "nearest"), ((1, 2, 5), "linear"), ((1, 1, 3, 4, 5), "nearest"), ((1, 1, 3, 4, 5), "trilinear")]
)
def test_1d_and_3d(shape: tuple[int, ...], mode: str) -> None:
    _check_all(shape, {"mode": mode, "scale_factor": 2}, {"mode": mode, "size": [n + 2 for n in shape[2:]]})


def test_dtypes() -> None:
    modes = ("nearest", "bilinear")
    _check_all((1, 2, 5, 4), *({"mode": mode, "size": (7, 9)} for mode in modes), dtype=torch.float32)
    check(lambda x: [F.interpolate(x, size=(7, 9), mode=mode) for mode in modes], torch.randn(1, 2, 5, 4).bfloat16())
    check(lambda x: F.interpolate(x, scale_factor=2), torch.arange(12, dtype=torch.uint8).reshape(1, 1, 3, 4))


def test_infinity_does_not_spread() -> None:
    x = torch.randn(1, 1, 4, 4)
    x[0, 0, 1, 1] = torch.inf
    check(lambda x: F.interpolate(x, size=(6, 6)), x)
    check(lambda g: torch.ops.aten.upsample_nearest2d_backward(g, [4, 4], [1, 1, 3, 6]), x)


def test_nearest_by_whole_factors_gathers_nothing() -> None:
    text = check_text(lambda x: F.interpolate(x, scale_factor=2), torch.randn(1, 2, 3, 4))
    assert "gather" not in text


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pad(mode: str) -> None:
    def step(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        outs = [F.pad(x, pads, mode) for pads in ((2, 1, 1, 3), (0, 2, 0, 0), (0, 0, 0, 0))]
        return outs, [torch.autograd.grad(o, [x], torch.arange(o.numel(), dtype=o.dtype).reshape(o.shape)) for o in outs]

    check(step, torch.randn(1, 2, 5, 4))


def test_replicated_and_cut() -> None:
    check(lambda x: F.pad(x, (-4, 5, 2, -1), "replicate"), torch.randn(1, 2, 5, 4))


def test_pixel_shuffle() -> None:
    check(lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.channel_shuffle(x, 4)), torch.randn(1, 8, 4, 6))


@pytest.mark.parametrize("size", [(8, 9), (30, 41), (17, 5)])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes(mode: str, antialias: bool, size: tuple[int, int]) -> None:
    """By weights of 16 bits and clamped, as eager's: the overshoot of a cubic must not wrap."""
    x = torch.randint(0, 256, (2, 3, 17, 19), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    slack = int(mode == "bicubic" and not antialias)
    check(lambda x: F.interpolate(x, size=size, mode=mode, antialias=antialias), x, rtol=0, atol=slack)


def test_bytes_are_copied_from_the_places_of_floats() -> None:
    """Found in float32: in float64 some are others."""
    x = torch.arange(190, dtype=torch.uint8).reshape(1, 1, 190)
    sizes = range(1, 400, 3)
    assert all(torch.equal(F.interpolate(x, size=n), F.interpolate(x.float(), size=n).byte()) for n in sizes)
    check(lambda x: [F.interpolate(x, size=n) for n in sizes], x)
