"""Fourier transforms: passes over what they read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("call", "bytes_of_passes"),
    [
        # One line in one pass: complex fp32 in and out.
        ("torch.fft.fft(torch.randn(16, 1024, dtype=torch.complex64, device='cuda'))", [16 * 1024 * 16]),
        # Of a real one half the spectrum, and its mirror.
        ("torch.fft.rfft(torch.randn(16, 1024, device='cuda'))", [16 * (1024 * 4 + 513 * 8)]),
        ("torch.fft.irfft(torch.randn(16, 513, dtype=torch.complex64, device='cuda'))", [16 * (513 * 8 + 1024 * 4)]),
        ("torch.fft.rfft(torch.randn(16, 1024, device='cuda').half())", [16 * (1024 * 2 + 513 * 4)]),
        # A pass for each dimension, and two for one that is long.
        ("torch.fft.fft2(torch.randn(16, 64, 64, dtype=torch.complex64, device='cuda'))", [16 * 64 * 64 * 16] * 2),
        ("torch.fft.fft(torch.randn(16, 65536, dtype=torch.complex64, device='cuda'))", [16 * 65536 * 16] * 2),
    ],
)  # fmt: skip
def test_a_transform_passes_over_its_data(
    emulate: Callable[..., Any], call: str, bytes_of_passes: list[int]
) -> None:
    run = emulate(f"import torch; result = [str(({call}).dtype)]")
    moved = [op["bytes"] for op in run.launched("kernel") if op["kernel"].startswith("cufft_")]
    assert moved == bytes_of_passes
    assert run.trace.unsupported == ()


def test_a_length_with_a_large_prime_takes_longer(emulate: Callable[..., Any]) -> None:
    run = emulate(
        "import torch; torch.fft.fft(torch.randn(16, 1031, device='cuda') + 0j)"
    )  # Bluestein's algorithm
    assert sum(op["kernel"].startswith("cufft_") for op in run.launched("kernel")) == 6


def test_spectrograms_and_long_convolutions_train(emulate: Callable[..., Any]) -> None:
    run = emulate(
        """
        import torch
        x = torch.randn(4, 16000, device="cuda", requires_grad=True)
        window = torch.hann_window(400, device="cuda")
        spectrum = torch.stft(x, 400, 160, window=window, return_complex=True)
        torch.istft(spectrum, 400, 160, window=window, length=16000).square().sum().backward()
        filters = torch.randn(1, 16000, device="cuda", requires_grad=True)
        long = torch.fft.irfft(torch.fft.rfft(x, 32000) * torch.fft.rfft(filters, 32000), 32000)[..., :16000]
        long.sum().backward()
        result = [list(spectrum.shape), list(x.grad.shape), list(filters.grad.shape)]
        """
    )
    assert run.result == [[4, 201, 101], [4, 16000], [1, 16000]]
    assert run.trace.unsupported == ()
