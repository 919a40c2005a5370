"""Matrix products in kernels of Triton, counted in their PTX: at cuBLAS's rate on the multiprocessors they occupy."""

from __future__ import annotations

import math
from typing import Final

from maya.clusters import Device
from maya.trace.types import Gemm, Kernel

LIKE: Final = Gemm(4096, 4096, 4096)  # of 16-bit operands, as products are counted; fills every device


def counted_flops(kernel: Kernel) -> float:
    """FLOP of the kernel's matrix products; 0 where it has none, or none that were counted."""
    return 0.0 if kernel.work is None else float(kernel.work.products)


def occupied(kernel: Kernel, device: Device) -> float:
    """Share of the multiprocessors that have a block of the kernel."""
    return min(math.prod(kernel.grid) / device.multiprocessors, 1.0)
