"""Traces of pipeline stages that did not run, out of those of two that did (maya.launch.stages)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from maya.launch.stages import Between, Blocks, blocks_of, records_in_line, telling
from maya.launch.types import Run
from maya.trace.absent import Groups, as_seen_by
from maya.trace.classes import as_rank
from maya.trace.format import RawRank, TraceError


def inferred_ranks(run: Run, raw_of: dict[int, RawRank]) -> list[RawRank]:
    """What each rank of `run.inferred` would have recorded. Its memory is taken to be that of the stage before it that
    ran. Raises TraceError where those that ran do not tell.
    """
    if run.topology is None:
        return []
    groups = Groups(run.topology)
    blocks = {rank: _steady_blocks(run, raw_of[rank]) for rank in telling(run.inferred.values())}
    return [_inferred(run, rank, line, raw_of, blocks, groups) for rank, line in run.inferred.items()]


def _bounds(run: Run, raw: RawRank) -> list[int]:
    """Row after each optimizer step, from where the steady iterations begin."""
    first, last = run.steady
    if last <= first:
        raise TraceError(f"{raw.path}: steps ({first}, {last}] are steady: none is")
    return raw.rows_after(range(first, last + 1))


def _steady_blocks(run: Run, raw: RawRank) -> list[Blocks]:
    places = {index: local.rank for index, local in raw.communicators.items()}
    bounds = _bounds(run, raw)
    return [
        blocks_of(raw.records[start:end], raw.operations, raw.contexts, places)
        for start, end in pairwise(bounds)
    ]


def _inferred(
    run: Run,
    rank: int,
    line: Between,
    raw_of: dict[int, RawRank],
    blocks: dict[int, list[Blocks]],
    groups: Groups,
) -> RawRank:
    lower = raw_of[line.lower]
    bounds = _bounds(run, lower)
    parts: list[NDArray[np.void]] = [lower.records[: bounds[0]]]
    for number, (one, other) in enumerate(zip(blocks[line.lower], blocks[line.upper], strict=True)):
        part = records_in_line(one, other, line.share, lower.records[bounds[number] : bounds[number + 1]])
        if part is None:
            raise TraceError(
                f"rank {rank} did not run, and ranks {line.lower} and {line.upper} do not tell what it does: "
                "their loops differ; record the job with --ranks dedup"
            )
        parts.append(part)
    own = {index: as_seen_by(rank, line.lower, local, groups) for index, local in lower.communicators.items()}
    communicators = {index: local for index, local in own.items() if local is not None}
    raw, records = as_rank(lower, np.concatenate(parts), rank, {rank: communicators})
    return replace(raw, records=records, communicators=communicators)
