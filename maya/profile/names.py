"""What the name of a library's kernel tells of the work that it does."""

from __future__ import annotations

import re

# cuBLAS: nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT, cutlass_80_tensorop_s16816gemm_bf16_64x128_64x4_nt_align8,
# sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64, ampere_sgemm_128x64_nn: transposes of A and of B.
_NVJET = re.compile(r"nvjet_\w+_([NT])([NT])[NT]$")
_GEMM = re.compile(r"gemm\w*?_([nt])([nt])(?:_[nt])?(?:_align\d+|_tilesize\w*)?(?=_|\b)")
# nvjet_sm90_hsh_256x128 (its first letter is A's type), cutlass_80_tensorop_f16_s16816gemm_f16_256x128,
# sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n, cutlass_80_tensorop_s1688gemm_128x128, cutlass_80_simt_sgemm_128x128.
_PRECISIONS = {
    "bf16": re.compile(r"nvjet_(?:sm\d+_)?t|gemm_bf16"),
    "fp16": re.compile(r"nvjet_(?:sm\d+_)?h|gemm_f16"),
    "tf32": re.compile(r"xmma_gemm_f32f32_tf32f32_|tensorop_s1688gemm_\d+x"),
    "fp32": re.compile(r"xmma_gemm_f32f32_f32f32_|simt_sgemm_\d+x"),
}
_DIRECTIONS = {"dgrad": "backward_data", "wgrad": "backward_filter", "fprop": "forward"}


def layout(name: str) -> str | None:
    """Of a matrix product's kernel: NN, NT, TN or TT, column-major as cuBLAS has it; None of others."""
    found = _NVJET.search(name) or _GEMM.search(name)
    return None if found is None else (found[1] + found[2]).upper()


def precision(name: str) -> str | None:
    """Of a matrix product's kernel: bf16, fp16, tf32 or fp32; None where the name does not tell."""
    return next((each for each, pattern in _PRECISIONS.items() if pattern.search(name)), None)


def direction(name: str) -> str | None:
    """Of a convolution's kernel, as `Convolution.direction`; None where the name does not tell."""
    lower = name.lower()  # CUTLASS has Conv2dWgrad
    return next((meaning for word, meaning in _DIRECTIONS.items() if word in lower), None)
