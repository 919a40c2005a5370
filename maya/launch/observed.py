"""What a rank did in the iteration by which ranks are compared, read from its trace while it waits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from maya.launch.layout import HEADER, HEADER_BYTES, RAW_RECORD, RecordKind, rank_path


@dataclass(frozen=True)
class Observed:
    hash: int  # rolling hash of the iteration's device calls
    calls: int  # device calls of that iteration; those before depend on what a compiler found in its cache
    transfers: frozenset[int] = (
        frozenset()
    )  # families (topology.py) on which it sent to or received from one peer


def observe(directory: Path, rank: int, segment_hash: int | None) -> Observed:
    """`segment_hash` is that of the iteration; None: the script ended without an optimizer step."""
    path = rank_path(directory, rank)
    count = int(np.fromfile(path, HEADER, 1)[0]["records"])
    if not count:
        return Observed(segment_hash or 0, 0)
    records = np.memmap(path, RAW_RECORD, "r", HEADER_BYTES, (count,))
    transfers = (records["kind"] == RecordKind.COLLECTIVE) & (records["peer"] >= 0)
    families = _families(path.with_suffix(".ops"))
    used = frozenset(
        families[index] for index in np.unique(records["arg"][transfers]).tolist() if index in families
    )
    steps = np.flatnonzero(records["kind"] == RecordKind.STEP)
    calls = count - (int(steps[-2]) + 1 if len(steps) > 1 else 0)
    return Observed(int(records["hash"][-1]) if segment_hash is None else segment_hash, calls, used)


def _families(table: Path) -> dict[int, int]:
    """Family of each communicator of an .ops table, by local index."""
    lines = [
        json.loads(line) for line in table.read_text().splitlines() if line.startswith('{"communicator"')
    ]
    return {line["communicator"]: line["family"] for line in lines if "family" in line}
