"""Iterations of a run in which PyTorch's operators were not observed: their host time has nothing of that in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from maya.launch.types import Run
from maya.trace.format import RawRank
from maya.trace.types import RecordKind

# The caching allocator's trips to the driver: what differs between like iterations.
IRREGULAR = (RecordKind.ALLOCATE, RecordKind.FREE, RecordKind.HOST)


def with_silence(run: Run, ranks: Sequence[RawRank]) -> tuple[Run, list[RawRank]]:
    """The run with its silent iterations as the steady ones, each call of theirs in the operator that the like call of
    the last observed iteration was in. Those from the first on that is not like it are left out."""
    first, last = run.silent
    if first == 0:
        return run, list(ranks)
    steps = range(first - run.period, last + 1, run.period)
    iterations = [_iterations(raw, steps) for raw in ranks]
    alike = min(map(_alike, ranks, iterations), default=0)
    named = [_named(raw, rows[: 1 + alike]) for raw, rows in zip(ranks, iterations, strict=True)]
    end = first + alike * run.period
    steady, silent = ((first, end), (first, end)) if alike else (run.steady, (0, 0))
    return replace(run, steady=steady, silent=silent), named


def _iterations(raw: RawRank, steps: Sequence[int]) -> list[NDArray[np.intp]]:
    """The rows of each between two of the steps, without irregular calls: of the last observed one and the silent."""
    kind = raw.records["kind"]
    bounds = pairwise(raw.rows_after(steps))
    return [start + np.flatnonzero(~np.isin(kind[start:end], IRREGULAR)) for start, end in bounds]


def _alike(raw: RawRank, iterations: Sequence[NDArray[np.intp]]) -> int:
    """How many of the silent iterations, from the first on, make the calls of the observed one."""
    observed, *silent = (raw.records[rows][["kind", "flags", "op"]] for rows in iterations)
    unlike = (number for number, calls in enumerate(silent) if not np.array_equal(calls, observed))
    return next(unlike, len(silent))


def _named(raw: RawRank, iterations: Sequence[NDArray[np.intp]]) -> RawRank:
    """Up to the end of these iterations, the silent ones with the operators of the observed one."""
    observed, *silent = iterations
    records = raw.records[: iterations[-1][-1] + 1].copy()
    for rows in silent:
        records["context"][rows] = records["context"][observed]
    return replace(raw, records=records)
