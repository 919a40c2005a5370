"""Products in fp16 that EleutherAI/cookbook timed on an A100 and on a V100, with PyTorch 1.13 and later.

Branch `sizing`, commit e6b8f2bf4b1c77a54118a3bfe4ca2b27e951a332, Apache-2.0: `sizing/results` holds what its scripts
printed, a product of row-major [m, k] and [k, n] a line, each timed by the host's clock with a synchronisation. The
paper to it: Anthony et al., "The Case for Co-Designing Model Architectures with Hardware", 2024.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from maya.trace.types import Gemm

# "64x2048x128x2048": batch, m, k, n; "8192x6144x8192": m, k, n; "4x8192x6144, b=2048": m over b, k, n.
_LINE = re.compile(
    r"^Throughput \(in TFLOP/s\) for .*?(\d+(?:x\d+){2,3})(?:, b=(\d+))?\)?: (\d+\.\d+)$", re.MULTILINE
)
_FILES = {
    "a100": ("gemm_data/*/*/a100.out", "transformer_data/h_sweep.out", "transformer_data/vocab_*_sweep.out"),
    "v100": ("gemm_data/*/*/v100.out",),
}
_LEAST_S = 250e-6  # what is shorter is told by its launch and by the synchronisation, 20 to 40 us of it


def products(folder: Path, device: str) -> Iterator[tuple[Gemm, float]]:
    """Products and their seconds, in the order of the files, without short ones; `folder` holds the repository,
    `device` is of _FILES.

    Raises FileNotFoundError where it holds none of them."""
    files = sorted(file for glob in _FILES[device] for file in (folder / "sizing" / "results").glob(glob))
    if not files:
        raise FileNotFoundError(f"{folder}/sizing/results has none of {', '.join(_FILES[device])}")
    for file in files:
        for sizes, rows, tflops in _LINE.findall(file.read_text()):
            *batch, m, k, n = map(int, sizes.split("x"))
            product = Gemm(n, m * int(rows or 1), k, batch=(batch or [1])[0], dtype="fp16", compute="fp32")
            seconds = 2e-12 * product.m * product.n * product.k * product.batch / float(tflops)
            if seconds >= _LEAST_S:
                yield product, seconds
