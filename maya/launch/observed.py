"""What a rank did in the iteration by which ranks are compared, read from its trace while it waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.launch.layout import HEADER, HEADER_BYTES, RAW_RECORD, RecordKind, rank_path
from maya.launch.rollouts import ROLLOUT, products, products_before
from maya.launch.stages import blocks_of, regular, tokens

_Lines = dict[int, dict[str, Any]]  # of a kind, by number


@dataclass(frozen=True)
class Observed:
    hash: int  # rolling hash of the iteration's device calls
    calls: int  # device calls of that iteration; those before depend on what a compiler found in its cache
    # Families (topology.py) on which it sent to or received from one peer, and that one's place in their group.
    transfers: frozenset[tuple[int, int]] = frozenset()
    used: frozenset[tuple[int, str]] = frozenset()  # families and collectives, since the script began
    # Both are worked out when first asked for. The blocks of an iteration with such transfers (stages.py), of the first
    # one without what it sets up before them: asked of long pipelines.
    blocks: Callable[[], tuple[int, ...]] = field(default=tuple, compare=False)
    # How often it made each call (stages.tokens): asked where hashes differ.
    times: Callable[[], Mapping[int, int]] = field(default=dict, compare=False)
    before: int = field(default=0, compare=False)  # device calls before that iteration
    # Whether a rollout or an evaluation was before its first step (rollouts.py).
    rolls_out: Callable[[], bool] = field(default=bool, compare=False)
    # Of every step so far the optimizer is known, which announces its steps where operators are not observed.
    named: bool = field(default=False, compare=False)

    def share_unlike(self, other: Observed) -> float:
        """The share of the calls of either that the other did not make."""
        mine, theirs = self.times(), other.times()
        both = sum(min(count, theirs.get(call, 0)) for call, count in mine.items())
        made = max(sum(mine.values()), sum(theirs.values()))
        return 1 - both / made if made else 0.0


def recorded(path: Path) -> NDArray[np.void]:
    """[records, RAW_RECORD] of a trace so far: its rank may be running."""
    count = int(np.fromfile(path, HEADER, 1)[0]["records"])
    return np.memmap(path, RAW_RECORD, "r", HEADER_BYTES, (count,)) if count else np.empty(0, RAW_RECORD)


def observe(directory: Path, rank: int, segment_hash: int | None) -> Observed:
    """`segment_hash` is that of the iteration; None: the script ended without an optimizer step."""
    path = rank_path(directory, rank)
    records = recorded(path)
    if not len(records):
        return Observed(segment_hash or 0, 0)
    steps = np.flatnonzero(records["kind"] == RecordKind.STEP)
    start = int(steps[-2]) + 1 if len(steps) > 1 else 0
    segment = int(records["hash"][-1]) if segment_hash is None else segment_hash
    table = _Table(path.with_suffix(".ops"))
    transfers = table.transfers(records)
    calls = records[start:]
    named = bool(records["size"][steps].all())

    @cache
    def blocks() -> tuple[int, ...]:
        if not transfers:
            return ()
        told = blocks_of(calls, *table.lines).hashes
        return told if start else told[1:]

    @cache
    def times() -> Mapping[int, int]:
        made, count = np.unique(tokens(calls[regular(calls)], *table.lines), return_counts=True)
        return dict(zip(made.tolist(), count.tolist(), strict=True))

    def rolls_out() -> bool:
        later = records[steps[0] + 1 :] if len(steps) > 1 else records[:0]
        own = products(later, table.operations) / max(len(steps) - 1, 1)
        return products_before(records, table.operations, own) >= ROLLOUT

    return Observed(
        segment, len(calls), transfers, table.used(records), blocks, times, start, rolls_out, named
    )


def told_before_the_end(directory: Path, rank: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What may be why a script failed: the "library.function" of each call of the rank that was refused, in order,
    and notes of what it found otherwise than on a device."""
    path = rank_path(directory, rank).with_suffix(".ops")
    if not path.exists():  # it ended before its first device call
        return (), ()
    # A process that is killed leaves half a line at the end.
    text = [line for line in path.read_text().splitlines() if line.endswith("}")]
    refused = [json.loads(line) for line in text if line.startswith('{"unsupported"')]
    notes = [json.loads(line)["note"] for line in text if line.startswith('{"note"')]
    return tuple(dict.fromkeys(f"{line['library']}.{line['unsupported']}" for line in refused)), tuple(
        dict.fromkeys(notes)
    )


class _Table:
    """The .ops table beside a trace."""

    def __init__(self, path: Path) -> None:
        self._text = path.read_text().splitlines()
        self.operations = _numbered(self._text, "op")
        self.communicators = _numbered(self._text, "communicator")

    @cached_property
    def lines(self) -> tuple[_Lines, _Lines, dict[int, int]]:
        """As stages.py asks for them: operations, contexts, and the rank's place in each communicator."""
        places = {index: int(line["rank"]) for index, line in self.communicators.items()}
        return self.operations, _numbered(self._text, "context"), places

    def used(self, records: NDArray[np.void]) -> frozenset[tuple[int, str]]:
        """Families and the collectives on them."""
        made = self._in_families(records[records["kind"] == RecordKind.COLLECTIVE], "op")
        return frozenset(
            (line["family"], str(self.operations.get(op, {}).get("collective"))) for line, op in made
        )

    def transfers(self, records: NDArray[np.void]) -> frozenset[tuple[int, int]]:
        """Families, and the places of single peers in their groups."""
        made = self._in_families(records[records["peer"] >= 0], "peer")
        return frozenset(
            (line["family"], line["pair"][peer] if "pair" in line else peer) for line, peer in made
        )

    def _in_families(self, made: NDArray[np.void], column: str) -> Iterator[tuple[dict[str, Any], int]]:
        """The lines of communicators of families that collectives were `made` on, each with what `column` says."""
        for pair in np.unique(made["arg"].astype(np.int64) << 32 | made[column]).tolist():
            line = self.communicators.get(pair >> 32, {})
            if "family" in line:
                yield line, pair & 0xFFFFFFFF


def _numbered(table: list[str], kind: str) -> _Lines:
    """Those lines of the .ops table beside a trace that number a `kind`, by that number."""
    told = [json.loads(line) for line in table if line.startswith(f'{{"{kind}"')]
    return {line[kind]: line for line in told}
