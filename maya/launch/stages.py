"""Pipeline stages that need not run: what a stage between two others does, from the loops that theirs consist of.

Stages of equal layers make the same calls and differ in how often they go round: in 1F1B, stage p of P has P - p - 1
forward passes before its first backward pass (Narayanan et al. 2021, arXiv:2104.04473, 2.2). Nothing is known of
schedules here: a rank's calls are cut into blocks where transfers begin and end, repeated blocks are loops, and where
the loops of two stages have the same bodies, those of another have as many turns as lie in line with theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.launch.content import contents
from maya.launch.layout import RecordKind

LONGEST_BODY = 32  # blocks of a loop's body, at most
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so its powers never vanish modulo 2^64


@dataclass(frozen=True)
class Between:
    """A rank that did not run, in line with two that did: `share` of the way from one to the other, or beyond."""

    lower: int
    upper: int
    share: Fraction


def telling(lines: Iterable[Between]) -> list[int]:
    """The ranks that tell what those in line did, ascending."""
    return sorted({rank for line in lines for rank in (line.lower, line.upper)})


@dataclass(frozen=True)
class Blocks:
    """Calls of a rank, cut where transfers to and from single peers begin and end."""

    hashes: tuple[int, ...]  # equal for equal calls, on any rank of this job
    bounds: NDArray[np.int64]  # [blocks + 1] rows of the records


@dataclass(frozen=True)
class Loop:
    body: tuple[int, ...]  # hashes of blocks
    turns: int
    first: int  # block


def blocks_of(
    records: NDArray[np.void],
    operations: Mapping[int, dict[str, Any]],
    contexts: Mapping[int, dict[str, Any]],
    places: Mapping[int, int],
) -> Blocks:
    """Of a rank's records (dtype RAW_RECORD), lines of its .ops table by number, and its place in each communicator."""
    rows = np.flatnonzero(regular(records))
    if not len(rows):
        return Blocks((), np.array([0]))
    calls = records[rows]
    transfers = (calls["kind"] == RecordKind.COLLECTIVE) & (calls["peer"] >= 0)
    starts = np.flatnonzero(np.diff(transfers, prepend=~transfers[:1]))
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(len(rows), _BASE))
        place = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
        hashes = np.add.reduceat(tokens(calls, operations, contexts, places) * powers[place], starts)
    bounds = np.append(rows[starts], len(records))
    bounds[0] = 0
    return Blocks(tuple(hashes.tolist()), bounds)


def regular(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """[records] Which are calls that another iteration makes again."""
    irregular = (RecordKind.ALLOCATE, RecordKind.FREE, RecordKind.HOST)
    return np.asarray(~np.isin(records["kind"], irregular))


def tokens(
    calls: NDArray[np.void],
    operations: Mapping[int, dict[str, Any]],
    contexts: Mapping[int, dict[str, Any]],
    places: Mapping[int, int],
) -> NDArray[np.uint64]:
    """[calls] What each is, on whatever rank: its operation, stream, size, and how far its peer is."""
    kind = calls["kind"]
    collective = kind == RecordKind.COLLECTIVE
    moves = collective | (kind == RecordKind.MEMCPY) | (kind == RecordKind.MEMSET)
    distance = np.zeros(len(calls), np.int64)
    for index in np.unique(calls["arg"][collective]).tolist():
        chosen = collective & (calls["arg"] == index) & (calls["peer"] >= 0)
        distance[chosen] = calls["peer"][chosen].astype(np.int64) - places.get(index, 0) + (1 << 32)
    columns = (
        kind.astype(np.uint64) | calls["flags"].astype(np.uint64) << np.uint64(8),
        calls["stream"].astype(np.uint64),
        contents(calls, operations, contexts),
        np.where(moves, calls["size"], 0).astype(np.uint64),
        np.where(collective, calls["arg"], 0).astype(np.uint64),
        distance.view(np.uint64),
        (calls["group"] > 0).astype(np.uint64),
    )
    token = np.zeros(len(calls), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            token = (token ^ column) * _BASE
            token ^= token >> np.uint64(29)
    return token


@lru_cache(maxsize=16)  # the same few stages tell of all others
def loops(blocks: tuple[int, ...]) -> tuple[Loop, ...]:
    """The blocks as loops one after another; a block that does not repeat is a loop of one turn."""
    found, at = [], 0
    while at < len(blocks):
        length, turns = 1, 1
        for candidate in range(1, min(LONGEST_BODY, (len(blocks) - at) // 2) + 1):
            times = _turns(blocks, at, candidate)
            if times > 1 and times * candidate > turns * length:
                length, turns = candidate, times
        found.append(Loop(blocks[at : at + length], turns, at))
        at += length * turns
    return tuple(found)


def _turns(blocks: Sequence[int], at: int, length: int) -> int:
    body, turns = blocks[at : at + length], 1
    while blocks[at + turns * length : at + (turns + 1) * length] == body:
        turns += 1
    return turns


def in_line(lower: tuple[int, ...], upper: tuple[int, ...], share: Fraction) -> list[tuple[Loop, int]] | None:
    """Loops of `lower` and how often the stage that is `share` of the way to `upper` goes round each; None where the
    two do not have the same loops."""
    one, other = loops(lower), loops(upper)
    if [loop.body for loop in one] != [loop.body for loop in other]:
        return None
    turns = [a.turns + share * (b.turns - a.turns) for a, b in zip(one, other, strict=True)]
    if any(count.denominator != 1 or count < 0 for count in turns):
        return None
    return [(loop, int(count)) for loop, count in zip(one, turns, strict=True)]


def hashes_in_line(lower: tuple[int, ...], upper: tuple[int, ...], share: Fraction) -> tuple[int, ...] | None:
    line = in_line(lower, upper, share)
    return None if line is None else tuple(block for loop, turns in line for block in loop.body * turns)


def records_in_line(
    lower: Blocks, upper: Blocks, share: Fraction, records: NDArray[np.void]
) -> NDArray[np.void] | None:
    """What the stage in line would have recorded, out of `records`, which `lower` cuts; None: it cannot be told.

    Of a loop that it goes round more often, the last turn is repeated; of one that it goes round less often, the last
    turns are left out. NCCL groups keep apart.
    """
    line = in_line(lower.hashes, upper.hashes, share)
    if line is None:
        return None
    parts = []
    step = np.uint32(int(records["group"].max(initial=0)) + 1)
    for loop, turns in line:
        for turn in range(turns):
            first = loop.first + min(turn, loop.turns - 1) * len(loop.body)
            part = records[lower.bounds[first] : lower.bounds[first + len(loop.body)]]
            if turn >= loop.turns:
                part = part.copy()
                part["group"] += np.where(part["group"] > 0, step * np.uint32(turn - loop.turns + 1), 0)
            parts.append(part)
    return np.concatenate(parts) if parts else records[:0]
