"""Tells of each of a rank's calls whether a forward pass made it, a backward pass, or the optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maya.launch.layout import FLAG_GRAPH, FLAG_STEPPING
from maya.trace.types import Pass, RecordKind

# Kernels in a row that a backward pass has in common with a forward one where it recomputes: its own products have
# other layouts, and what lies between them other kernels.
_IN_A_ROW = 4
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd: no power of it vanishes modulo 2^64


def passes(cut: NDArray[np.void], operations: NDArray[np.int32]) -> NDArray[np.uint8] | None:
    """[records] `Pass`: the thread that takes the optimizer's step computes forward passes, others backward ones.

    `operations` are the records', equal numbers for equal ones. PyTorch runs backward passes, and what they recompute,
    on threads of its own. Within a step, what comes before one is its closure's. None without a step; of a graph only
    its replay's thread is known, so it counts as nobody's.
    """
    steps = np.flatnonzero(cut["kind"] == RecordKind.STEP)
    if not len(steps) or (cut["flags"] & FLAG_GRAPH).any():
        return None
    backward = cut["thread"] != cut["thread"][steps[-1]]
    stepping = ~backward & (cut["flags"] & FLAG_STEPPING != 0)
    steps_end, next_backward = (
        np.append(rows, len(cut))[np.searchsorted(rows, np.arange(len(cut)))]
        for rows in (np.flatnonzero(~backward & ~stepping), np.flatnonzero(backward))
    )
    optimizer = stepping & (steps_end <= next_backward)
    result = np.select([backward, optimizer], [Pass.BACKWARD, Pass.OPTIMIZER], Pass.FORWARD).astype(np.uint8)
    kernels = cut["kind"] == RecordKind.KERNEL
    own, others = (np.flatnonzero(kernels & (result == which)) for which in (Pass.BACKWARD, Pass.FORWARD))
    result[own[_in_common(operations[own], operations[others])]] = Pass.RECOMPUTATION
    return result


def _in_common(own: NDArray[np.int32], others: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[own] Whether it is one of several in a row that `others` have in a row, too."""
    starts = np.isin(_rows(own), _rows(others))
    result = np.zeros(len(own), np.bool_)
    for offset in range(_IN_A_ROW):
        result[offset : offset + len(starts)] |= starts
    return result


def _rows(operations: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A number for each run of so many operations, equal for equal ones."""
    count = max(len(operations) - _IN_A_ROW + 1, 0)
    result = np.zeros(count, np.uint64)
    for offset in range(_IN_A_ROW):
        result = result * _BASE + operations[offset : offset + count].astype(np.uint64)
    return result
