"""The rank trace's binary layout; mirrors emulator/core/trace_format.h field for field."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np

HEADER_BYTES: Final = 4096
VERSION: Final = 3
MAGIC: Final = b"MAYATRC1"
FLAG_BLOCKING: Final = 1
FLAG_GRAPH: Final = 2
FLAG_STEPPING: Final = 4


class RecordKind(IntEnum):
    """What one record is; mirrors `maya::RecordKind` (emulator/core/trace_format.h)."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    COLLECTIVE = 3
    EVENT_RECORD = 4
    STREAM_WAIT_EVENT = 5
    EVENT_SYNCHRONIZE = 6
    STREAM_SYNCHRONIZE = 7
    DEVICE_SYNCHRONIZE = 8
    ALLOCATE = 9
    FREE = 10
    STEP = 11
    HOST = 12


# maya::Record, 64 bytes.
RAW_RECORD = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("thread", "<u2"),
        ("stream", "<u4"),
        ("op", "<u4"),
        ("context", "<u4"),
        ("host_ns", "<u8"),
        ("size", "<u8"),
        ("arg", "<u8"),
        ("sequence", "<u4"),
        ("peer", "<i4"),
        ("group", "<u4"),
        ("ranges", "<u4"),
        ("hash", "<u8"),
    ]
)
# maya::TraceHeader, the start of the first page.
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("rank", "<u4"),
        ("world", "<u4"),
        ("local_rank", "<u4"),
        ("records", "<u8"),
        ("capacity_bytes", "<u8"),
        ("context_bytes", "<u8"),
        ("reserved_bytes", "<u8"),
        ("peak_reserved_bytes", "<u8"),
        ("oom_count", "<u8"),
        ("oom_requested_bytes", "<u8"),
        ("oom_free_bytes", "<u8"),
        ("steps", "<u8"),
        ("unsupported_count", "<u8"),
    ]
)
assert RAW_RECORD.itemsize == 64


def rank_path(directory: Path, rank: int) -> Path:
    """Where rank `rank` of a run in `directory` leaves its records; the .ops table lies beside it."""
    return directory / f"rank-{rank:05d}.trace"
