"""A hand that writes rank traces as the emulator does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maya.launch.layout import HEADER, HEADER_BYTES, MAGIC, RAW_RECORD, VERSION, rank_path
from maya.trace.types import RecordKind


class RankWriter:
    """Collects one rank's calls; `write` leaves its `.trace` and `.ops` files."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.lines: list[dict[str, Any]] = []
        self.records: list[dict[str, int]] = []
        self._ops: dict[str, int] = {}
        self._contexts: dict[str, int] = {}
        self._steps = 0

    def communicator(self, index: int, identity: str, size: int, rank: int, **told: Any) -> None:
        self.lines.append({"communicator": index, "id": identity, "size": size, "rank": rank, **told})

    def record(self, kind: RecordKind, **columns: int) -> None:
        self.records.append({"kind": kind, "peer": -1, "host_ns": 1000, **columns})

    def op(self, **members: Any) -> int:
        return self._intern(self._ops, "op", members)

    def context(self, operator: str, sizes: str) -> int:
        return self._intern(self._contexts, "context", {"operator": operator, "sizes": sizes})

    def kernel(self, name: str = "k", stream: int = 7, operator: str = "", **columns: int) -> None:
        op = self.op(kind="kernel", kernel=name, grid=[1, 1, 1], block=[32, 1, 1], shared_bytes=0)
        context = self.context(operator, "[[2, 3], []]") if operator else 0
        self.record(RecordKind.KERNEL, op=op, stream=stream, context=context, **columns)

    def collective(
        self, name: str, communicator: int = 0, stream: int = 9, peer: int = -1, group: int = 0
    ) -> None:
        op = self.op(kind="collective", collective=name, dtype="bf16", reduction="", bytes=1024)
        self.record(
            RecordKind.COLLECTIVE, op=op, arg=communicator, stream=stream, peer=peer, size=1024, group=group
        )

    def step(self, optimizer: int = 1) -> None:
        self._steps += 1
        self.record(RecordKind.STEP, arg=self._steps, size=optimizer)

    def write(self, directory: Path) -> Path:
        path = rank_path(directory, self.rank)
        header = np.zeros(1, HEADER)
        header["magic"], header["version"] = MAGIC, VERSION
        header["rank"], header["world"], header["records"] = self.rank, self.world, len(self.records)
        header["capacity_bytes"], header["context_bytes"], header["peak_reserved_bytes"] = 80 << 30, 500, 1000
        records = np.zeros(len(self.records), RAW_RECORD)
        for row, columns in enumerate(self.records):
            for name, value in columns.items():
                records[row][name] = value
        path.write_bytes(header.tobytes().ljust(HEADER_BYTES, b"\0") + records.tobytes())
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        path.with_suffix(".ops").write_text(text, encoding="utf-8")
        return path

    def _intern(self, table: dict[str, int], name: str, members: dict[str, Any]) -> int:
        key = json.dumps(members)
        if key not in table:
            table[key] = len(table) + 1
            self.lines.append({name: table[key], **members})
        return table[key]


@pytest.fixture
def rank_writer() -> type[RankWriter]:
    return RankWriter
