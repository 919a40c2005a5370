"""Iterations of a run in which PyTorch's operators were not observed: their host time has nothing of that in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from maya.launch.types import Run
from maya.trace.format import RawRank, TraceError
from maya.trace.types import RecordKind

# The caching allocator's trips to the driver: what differs between like iterations.
IRREGULAR = (RecordKind.ALLOCATE, RecordKind.FREE, RecordKind.HOST)


def with_silence(run: Run, ranks: Sequence[RawRank]) -> tuple[Run, list[RawRank]]:
    """The run with its silent iterations as the steady ones, each call of theirs in the operator that the like call of
    the last observed iteration was in. Those from the first on that is not like it are left out."""
    first, last = run.silent
    alike = min((_alike(run, raw) for raw in ranks), default=0) if last > first else 0
    end = first + alike * run.period
    named = [_named(run, raw, end) for raw in ranks]
    steady, silent = ((first, end), (first, end)) if alike else (run.steady, (0, 0))
    return replace(run, steady=steady, silent=silent), named


def row_after_step(raw: RawRank, step: int) -> int:
    """Where the calls after that optimizer step begin; `step` from 1, 0: the first call. Raises TraceError where fewer
    are recorded."""
    rows = np.flatnonzero(raw.records["kind"] == RecordKind.STEP)
    if step > len(rows):
        raise TraceError(f"{raw.path}: ranks made {step} steps, recorded are {len(rows)}")
    return int(rows[step - 1]) + 1 if step else 0


def _regular(run: Run, raw: RawRank, first: int, last: int) -> list[NDArray[np.intp]]:
    """The rows of each iteration between two steps, without irregular calls."""
    bounds = [row_after_step(raw, step) for step in range(first, last + 1, run.period)]
    kind = raw.records["kind"]
    return [start + np.flatnonzero(~np.isin(kind[start:end], IRREGULAR)) for start, end in pairwise(bounds)]


def _observed(run: Run, raw: RawRank) -> NDArray[np.intp]:
    return _regular(run, raw, run.silent[0] - run.period, run.silent[0])[0]


def _alike(run: Run, raw: RawRank) -> int:
    """How many of the silent iterations, from the first on, make the calls of the last observed one."""
    calls = raw.records[["kind", "flags", "op"]]
    observed = calls[_observed(run, raw)]
    for number, rows in enumerate(iterations := _regular(run, raw, *run.silent)):
        if not np.array_equal(calls[rows], observed):
            return number
    return len(iterations)


def _named(run: Run, raw: RawRank, end: int) -> RawRank:
    """Up to that step, if any is silent, with the operators of the silent ones."""
    if run.silent[0] == 0:
        return raw
    records = raw.records[: row_after_step(raw, end)].copy()
    observed = _observed(run, raw)
    for rows in _regular(run, raw, run.silent[0], end):
        records["context"][rows] = records["context"][observed]
    return replace(raw, records=records)
