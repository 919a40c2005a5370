"""Which record of an event a wait in the steady iteration is for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maya.trace.types import RecordKind


def resolve_waits(
    kind: NDArray[np.uint8], event: NDArray[np.uint64], before: NDArray[np.uint64] | None = None
) -> NDArray[np.int32]:
    """[records] `wait` of dtype RECORD: cudaStreamWaitEvent waits for the latest record before it.

    `before` are the events of the iteration before, which was equal but for them: a script may make new ones in each.
    None: they were the same.
    """
    length = len(kind)
    records = kind == RecordKind.EVENT_RECORD
    waits = (kind == RecordKind.STREAM_WAIT_EVENT) | (kind == RecordKind.EVENT_SYNCHRONIZE)
    rows = np.flatnonzero(records | waits)
    result = np.full(length, -1, np.int32)
    if not len(rows):
        return result
    events = np.concatenate([(event if before is None else before)[rows], event[rows]])
    _, dense = np.unique(events, return_inverse=True)
    order = np.argsort(dense, kind="stable")
    dense = dense[order]
    # Of both iterations, one after the other: the running maximum of (event, row of a record) in row order.
    ordered = np.concatenate([rows, rows + length])[order]
    stride = 2 * length + 1
    seen = dense * stride + np.where(np.tile(records[rows], 2)[order], ordered + 1, 0)
    latest = np.maximum.accumulate(seen) - dense * stride - 1
    own = ordered >= length
    result[ordered[own] - length] = _as_seen_from(ordered[own] - length, latest[own], length)
    result[records] = -1
    return result


def _as_seen_from(row: NDArray[np.intp], latest: NDArray[np.intp], length: int) -> NDArray[np.intp]:
    """`latest` counts from the start of the iteration before; that one's rows up to `row` are below zero."""
    return np.where((latest >= length) | ((latest >= 0) & (latest < row)), latest - length, latest)
