"""What the names of libraries' kernels tell of the call that they serve."""

from __future__ import annotations

import re

# cuBLAS: nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT, cutlass_80_tensorop_s16816gemm_bf16_64x128_64x4_nt_align8,
# sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64, ampere_sgemm_128x64_nn: transposes of A and of B.
_NVJET = re.compile(r"nvjet_\w+_([NT])([NT])[NT]$")
_GEMM = re.compile(r"gemm\w*?_([nt])([nt])(?:_[nt])?(?:_align\d+|_tilesize\w*)?(?=_|\b)")
_DIRECTIONS = {"dgrad": "backward_data", "wgrad": "backward_filter", "fprop": "forward"}
# Convolutions of channels-last tensors as plain products: of the gradient with the filter, with the input.
_DIRECTION_OF_LAYOUT = {"NN": "backward_data", "NT": "backward_filter", "TN": "forward"}


def layout(name: str) -> str | None:
    """Of a matrix product's kernel: NN, NT, TN or TT, column-major as cuBLAS has it; None of others."""
    found = _NVJET.search(name) or _GEMM.search(name)
    return None if found is None else (found[1] + found[2]).upper()


def direction(name: str, channels_last: bool) -> str | None:
    """Of a convolution's kernel, as `Convolution.direction`; None where the name does not tell."""
    for word, meaning in _DIRECTIONS.items():
        if word in name:
            return meaning
    of_product = layout(name)
    return _DIRECTION_OF_LAYOUT.get(of_product) if of_product and channels_last else None
