"""Fourier transforms against eager PyTorch: norm modes, orders of dims, odd and cut sizes, half spectra, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lowering.opcheck import check, check_text

NORMS = ["backward", "ortho", "forward"]
REAL = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
COMPLEX = torch.complex(REAL, REAL.flip(0).roll(1, 3))


@pytest.mark.parametrize("norm", NORMS)
def test_norm_modes(norm: str) -> None:
    fft = torch.fft
    check(lambda x: (fft.rfft(x, norm=norm), fft.fft(x, norm=norm), fft.ihfft(x, norm=norm), fft.ifft(x, norm=norm)), REAL)
    check(lambda z: (fft.fft(z, norm=norm), fft.ifft(z, norm=norm), fft.irfft(z, norm=norm), fft.hfft(z, norm=norm)), COMPLEX)
    check(lambda z: (fft.fftn(z, norm=norm), fft.irfftn(z, norm=norm), fft.ifft2(z, norm=norm)), COMPLEX)


@pytest.mark.parametrize("dims", [(0,), (2, 0), (-1, 1), (1, 3, 0), (0, 1, 2, 3), (3, 1, 0, 2)])
def test_orders_of_dims(dims: tuple[int, ...]) -> None:
    fft = torch.fft
    check(lambda z: (fft.fftn(z, dim=dims), fft.ifftn(z, dim=dims), fft.irfftn(z, dim=dims), fft.hfftn(z, dim=dims)), COMPLEX)
    check(lambda x: (fft.rfftn(x, dim=dims), fft.fftn(x, dim=dims), fft.ihfftn(x, dim=dims)), REAL)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 9, 16])
def test_sizes_cut_and_padded(n: int) -> None:
    fft = torch.fft
    check(lambda z: (fft.fft(z, n), fft.irfft(z, n), fft.hfft(z, n), fft.ifft(z, n, dim=1)), COMPLEX)
    check(lambda x: (fft.rfft(x, n), fft.fft(x, n), fft.ihfft(x, n)), REAL)


def test_half_spectrum_ignores_imaginary_parts_that_cannot_be() -> None:
    half = torch.tensor([1 + 9j, 2 - 1j, 3 + 4j, -1 + 7j])
    check(lambda z: (torch.fft.irfft(z, 6), torch.fft.irfft(z, 7), torch.fft.hfft(z, 6), torch.fft.irfft(z, 4)), half)
    check(lambda z: torch.fft.irfft2(z), torch.stack([half, half * 1j, half.conj().resolve_conj()]))
    check(lambda z: torch.ops.aten._fft_c2r(z, [0], 0, 4), half)


def test_single_precision_and_integers() -> None:
    check(lambda x: (torch.fft.fft(x), torch.fft.rfft(x)), torch.arange(10))
    check(lambda x: (torch.fft.rfft(x), torch.fft.fft2(x)), torch.randn(2, 3, 60))


def test_shifts_frequencies_and_windows() -> None:
    check(lambda z: (torch.fft.fftshift(z), torch.fft.ifftshift(z, dim=(1,)), torch.fft.fftfreq(7), torch.fft.rfftfreq(8, 0.5)), COMPLEX)


@pytest.mark.parametrize("center", [True, False])
def test_short_time_transform(center: bool) -> None:
    window = torch.hann_window(16, dtype=torch.float64)

    def spectrum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 16, 4, window=w, center=center, return_complex=True)

    check(spectrum, REAL.reshape(3, 120), window)
    check(lambda x, w: spectrum(x, w).abs().square().sum(), REAL.reshape(3, 120), window)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "rfft": lambda x: torch.fft.rfft(x, norm="ortho"),
    "rfftn": lambda x: torch.fft.rfftn(x, dim=(2, 3, 1)),
    "fft": lambda x: torch.fft.fft(torch.complex(x, x.flip(1))),
    "ifft2": lambda x: torch.fft.ifft2(torch.complex(x, x.flip(1)), norm="forward"),
    "irfft": lambda x: torch.fft.irfft(torch.complex(x, x.flip(1)), 9),
    "irfft even": lambda x: torch.fft.irfft(torch.complex(x, x.flip(1)), 8),
    "hfft": lambda x: torch.fft.hfft(torch.complex(x, x.flip(1))),
    "ihfft": lambda x: torch.fft.ihfft(x),
    "stft": lambda x: torch.stft(x.reshape(3, 120), 10, 5, window=torch.ones(10, dtype=x.dtype), return_complex=True),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_gradients(name: str) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = TRANSFORMS[name](x)
        weights = torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape).sin()
        return torch.autograd.grad((y * weights).abs().sum(), x)[0]

    check(gradient, REAL)


def test_programs_are_one_transform_where_one_is_enough() -> None:
    text = check_text(lambda x: torch.fft.rfftn(x, dim=(1, 2, 3)), REAL)
    assert text.count("stablehlo.fft") == 1 and "multiply" not in text and "transpose" not in text
    assert check_text(lambda x: torch.fft.fftn(x), COMPLEX).count("stablehlo.fft") == 2
