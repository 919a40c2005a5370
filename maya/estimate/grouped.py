"""Grouped matrix products: CUTLASS' kernels in PyTorch (torch._grouped_mm, torch._scaled_grouped_mm).

Which rows belong to which group is on the device; the sizes of the operator tell what all groups have together, and
they are taken to be equal.
"""

from __future__ import annotations

import re

from maya.trace.types import Gemm, Kernel

# Demangled or not: names of so many templates stay as they are.
_GROUPED = re.compile(r"GemmUniversal.*?GroupProblemShape")


def recognise(kernel: Kernel) -> Gemm | None:
    """The products that the kernel makes, of its operator's sizes: A, B, the scales of each if any, ends of groups."""
    if not _GROUPED.search(kernel.name):
        return None
    scaled = "scaled" in kernel.operator.name
    sizes = kernel.operator.sizes
    ends = 4 if scaled else 2
    if len(sizes) <= ends:
        return None
    a, b, groups = sizes[0], sizes[1], sizes[ends]
    if not (2 <= len(a) <= 3 and 2 <= len(b) <= 3):
        return None
    rows, depth, columns = a[-2], a[-1], b[-1]
    if len(a) == len(b) == 3:
        count = a[0]
    else:
        count = groups[0] if groups else 1
        if len(a) == len(b):  # each group has some of the depth: gradients of weights
            depth = _share(depth, count)
        elif len(a) == 2:
            rows = _share(rows, count)
        else:
            columns = _share(columns, count)
    return Gemm(columns, rows, depth, count, "fp8_e4m3" if scaled else "bf16", "bf16")


def _share(size: int, groups: int) -> int:
    return -(-size // groups) if groups else 0
