"""What a rank did in the iteration by which ranks are compared, read from its trace while it waits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maya.launch.layout import HEADER, HEADER_BYTES, RAW_RECORD, RecordKind, rank_path
from maya.launch.stages import blocks_of

# Device calls of an iteration, from which a rank takes many seconds for it.
LONG_ITERATION = 50_000


@dataclass(frozen=True)
class Observed:
    hash: int  # rolling hash of the iteration's device calls
    calls: int  # device calls of that iteration; those before depend on what a compiler found in its cache
    transfers: frozenset[int] = (
        frozenset()
    )  # families (topology.py) on which it sent to or received from one peer
    # Of a long iteration with such transfers (stages.py); of the first one without what it sets up before them.
    blocks: tuple[int, ...] = ()


def observe(directory: Path, rank: int, segment_hash: int | None) -> Observed:
    """`segment_hash` is that of the iteration; None: the script ended without an optimizer step."""
    path = rank_path(directory, rank)
    count = int(np.fromfile(path, HEADER, 1)[0]["records"])
    if not count:
        return Observed(segment_hash or 0, 0)
    records = np.memmap(path, RAW_RECORD, "r", HEADER_BYTES, (count,))
    transfers = (records["kind"] == RecordKind.COLLECTIVE) & (records["peer"] >= 0)
    table = path.with_suffix(".ops").read_text().splitlines()
    communicators = _numbered(table, "communicator")
    used = frozenset(
        communicators[index]["family"]
        for index in np.unique(records["arg"][transfers]).tolist()
        if "family" in communicators.get(index, {})
    )
    steps = np.flatnonzero(records["kind"] == RecordKind.STEP)
    start = int(steps[-2]) + 1 if len(steps) > 1 else 0
    segment = int(records["hash"][-1]) if segment_hash is None else segment_hash
    blocks: tuple[int, ...] = ()
    if used and count - start >= LONG_ITERATION:
        places = {index: int(line["rank"]) for index, line in communicators.items()}
        operations, contexts = _numbered(table, "op"), _numbered(table, "context")
        told = blocks_of(records[start:], operations, contexts, places).hashes
        blocks = told if start else told[1:]
    return Observed(segment, count - start, used, blocks)


def _numbered(table: list[str], kind: str) -> dict[int, dict[str, Any]]:
    """Those lines of the .ops table beside a trace that number a `kind`, by that number."""
    told = [json.loads(line) for line in table if line.startswith(f'{{"{kind}"')]
    return {line[kind]: line for line in told}
