"""A rollout or an evaluation before the first optimizer step: what may come again every so many steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.launch.layout import RecordKind

ROLLOUT = 4.0  # iterations' matrix products before the first step, from which there was one


def products_before(
    records: NDArray[np.void], operations: Mapping[int, Mapping[str, Any]], own: float
) -> float:
    """Matrix products and convolutions before the first step, besides that one's, over an iteration's `own`."""
    steps = np.flatnonzero(records["kind"] == RecordKind.STEP)
    return products(records[: steps[0]], operations) / own - 1 if len(steps) and own else 0.0


def products(records: NDArray[np.void], operations: Mapping[int, Mapping[str, Any]]) -> int:
    made = [op for op, line in operations.items() if line["kind"] in ("gemm", "convolution")]
    return int(np.count_nonzero((records["kind"] == RecordKind.KERNEL) & np.isin(records["op"], made)))
