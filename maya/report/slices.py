"""A rank's timeline as slices in track order: what drawings and trace files are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from maya.report.labels import HOST_WAITS, WORK_WAITS, operator_name
from maya.simulate.types import RankTimeline
from maya.trace.types import DEVICE_WORK, Operation, RankTrace

_ADJACENT_NS = 1000  # host work of one operator with less in between is one slice


class HostSlice(NamedTuple):
    begin: int  # ns
    end: int
    name: str  # the operator the host works for, or the call it waits in
    waits: bool


def host_slices(
    rank: RankTrace, times: RankTimeline, iteration: int, operations: tuple[Operation, ...]
) -> Iterator[HostSlice]:
    """The host thread in time order: its work before each call, and its waits for the device."""
    names = [operator_name(operation) or "host" for operation in operations]
    working: HostSlice | None = None
    free = 0  # when the host last became free
    for kind, operation, blocking, host, issued, start, end in _rows(rank, times, iteration):
        name = names[operation] if operation >= 0 else "host"
        begin = max(issued - host, free)
        if working and working.name == name and begin - working.end < _ADJACENT_NS:
            working = working._replace(end=max(working.end, issued))
        else:
            if working and working.end > working.begin:
                yield working
            working = HostSlice(begin, max(begin, issued), name, waits=False)
        free = working.end
        wait = HOST_WAITS.get(kind) or (WORK_WAITS.get(kind) if blocking else None)
        since = max(free, start if kind in HOST_WAITS else issued)
        if wait and end > since:
            if working.end > working.begin:
                yield working
            yield HostSlice(since, end, wait, waits=True)
            working, free = None, end
    if working and working.end > working.begin:
        yield working


def _rows(rank: RankTrace, times: RankTimeline, iteration: int) -> Iterator[tuple[int, ...]]:
    columns = [*(rank.records[name] for name in ("kind", "operation", "blocking")), times.host_ns]
    columns += [times.issued[iteration], times.start[iteration], times.end[iteration]]
    return zip(*(column.tolist() for column in columns), strict=True)


def device_rows(rank: RankTrace) -> NDArray[np.intp]:
    """The records that are work on the device, in issue order, which is each stream's order."""
    records = rank.records
    return np.flatnonzero(np.isin(records["kind"], DEVICE_WORK) & (records["operation"] >= 0))
