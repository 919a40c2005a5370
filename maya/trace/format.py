"""Reads one rank's `.trace` and `.ops` files (docs/trace-format.md).

Whatever is on disk, `read_rank` either returns a consistent `RawRank` or raises `TraceError` with the
file and what is wrong with it: a killed rank leaves a shorter file, a foreign file is no trace at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.errors import MayaError
from maya.launch.layout import HEADER, HEADER_BYTES, MAGIC, RAW_RECORD, VERSION
from maya.trace.types import RecordKind


class TraceError(MayaError):
    """A trace that cannot be read or does not fit together; the message shows the figures."""


@dataclass(frozen=True)
class LocalCommunicator:
    """A communicator as one rank announced it: its id, how many members, and its own place among them."""

    id: str
    size: int
    rank: int
    members: tuple[int, ...] = ()  # global ranks in communicator order, when the rank knew them
    family: int | None = None  # of the process group that it serves (maya.launch.topology), when it was named
    pair: tuple[int, int] | None = None  # it serves only transfers between these two members of the group


@dataclass(frozen=True)
class RawRank:
    """One rank's whole run, as recorded."""

    path: Path
    rank: int
    world: int
    records: NDArray[np.void]  # dtype RAW_RECORD
    operations: dict[int, dict[str, Any]]  # operation id -> its JSON line
    contexts: dict[int, dict[str, Any]]
    communicators: dict[int, LocalCommunicator]  # by local index
    blocking_streams: tuple[int, ...]  # created without cudaStreamNonBlocking
    unsupported: tuple[str, ...]  # "library.function"
    uncovered: tuple[str, ...]
    remarks: tuple[str, ...]  # what a user should know, though nothing is missing
    capacity_bytes: int
    context_bytes: int
    peak_reserved_bytes: int  # without the context
    unsupported_count: int

    def rows_after(self, steps: Iterable[int]) -> list[int]:
        """Where the calls after each of these optimizer steps begin; steps from 1, 0: the first call. Raises TraceError
        where one is not recorded."""
        rows = np.flatnonzero(self.records["kind"] == RecordKind.STEP)
        wanted = list(steps)
        for step in wanted:
            if step > len(rows):
                raise TraceError(f"{self.path}: ranks made {step} steps, recorded are {len(rows)}")
        return [int(rows[step - 1]) + 1 if step else 0 for step in wanted]


@dataclass
class _Table:
    """What the lines of an .ops file say."""

    operations: dict[int, dict[str, Any]]
    contexts: dict[int, dict[str, Any]]
    communicators: dict[int, LocalCommunicator]
    blocking_streams: list[int]
    unsupported: list[str]
    uncovered: list[str]
    remarks: list[str]

    def add(self, line: dict[str, Any]) -> None:
        if "op" in line:
            self.operations[int(line["op"])] = line
        elif "context" in line:
            self.contexts[int(line["context"])] = line
        elif "communicator" in line:
            self.communicators[int(line["communicator"])] = _local_communicator(line)
        elif "stream" in line:
            if line.get("blocking", False):
                self.blocking_streams.append(int(line["stream"]))
        elif "unsupported" in line:
            self.unsupported.append(f"{line.get('library', 'cuda')}.{line['unsupported']}")
        elif "uncovered" in line:
            self.uncovered.append(str(line["uncovered"]))
        elif "note" in line:
            self.remarks.append(str(line["note"]))


def read_rank(path: Path) -> RawRank:
    """Reads `rank-RRRRR.trace` and the `.ops` table beside it.

    Raises TraceError when either is missing, foreign, shorter than its header says, or when a record
    refers to an operation, context or communicator that the table lacks.
    """
    header, records = _read_records(path)
    table = _read_table(path.with_suffix(".ops"))
    _check_references(path, records, table)
    return RawRank(
        path=path,
        rank=int(header["rank"]),
        world=int(header["world"]),
        records=records,
        operations=table.operations,
        contexts=table.contexts,
        communicators=table.communicators,
        blocking_streams=tuple(sorted(set(table.blocking_streams))),
        unsupported=tuple(dict.fromkeys(table.unsupported)),
        uncovered=tuple(dict.fromkeys(table.uncovered)),
        remarks=tuple(dict.fromkeys(table.remarks)),
        capacity_bytes=int(header["capacity_bytes"]),
        context_bytes=int(header["context_bytes"]),
        peak_reserved_bytes=int(header["peak_reserved_bytes"]),
        unsupported_count=int(header["unsupported_count"]),
    )


def read_communicators(ops_path: Path) -> dict[int, LocalCommunicator]:
    """Only the communicators that an .ops table announces: all that is needed of a rank that ended early."""
    table = _Table({}, {}, {}, [], [], [], [])
    for line in _read_lines(ops_path):
        if line.startswith('{"communicator"'):
            _add_line(ops_path, table, line, last=False)
    return table.communicators


def signatures(raw: RawRank, streams: NDArray[np.unsignedinteger]) -> NDArray[np.uint64]:
    """[records] What each record is, times and addresses left out: equal calls have equal signatures.

    A function of kind, flags, the stream as `streams` [records] number it, operation, context, size of copies, and for
    collectives the communicator and the peer. Unlike `hash` it does not depend on what came before.
    """
    records = raw.records
    copies = np.isin(records["kind"], (RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.COLLECTIVE))
    collective = records["kind"] == RecordKind.COLLECTIVE
    columns = (
        records["kind"].astype(np.uint64) | (records["flags"].astype(np.uint64) << np.uint64(8)),
        streams.astype(np.uint64),
        records["op"].astype(np.uint64),
        records["context"].astype(np.uint64),
        np.where(copies, records["size"], 0).astype(np.uint64),
        np.where(collective, records["arg"], 0).astype(np.uint64),
        np.where(collective, records["peer"], -1).astype(np.int64).view(np.uint64),
    )
    signature = np.zeros(len(records), np.uint64)
    for column in columns:
        signature = _mix(signature + column)
    return signature


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # SplitMix64's finaliser (Steele, Lea, Flood 2014).
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _read_records(path: Path) -> tuple[np.void, NDArray[np.void]]:
    try:
        with path.open("rb") as file:
            page = file.read(HEADER_BYTES)
            if len(page) < HEADER_BYTES:
                raise TraceError(f"{path}: {len(page)} bytes, shorter than the {HEADER_BYTES}-byte header")
            header = np.frombuffer(page, HEADER, count=1)[0]
            _check_header(path, header)
            count = int(header["records"])
            held = (path.stat().st_size - HEADER_BYTES) // RAW_RECORD.itemsize
            if count > held:
                raise TraceError(f"{path}: truncated, header says {count} records, file holds {held}")
            records = np.fromfile(file, RAW_RECORD, count=count)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if len(records) != count:
        raise TraceError(f"{path}: truncated, header says {count} records, read {len(records)}")
    return header, records


def _check_header(path: Path, header: np.void) -> None:
    if header["magic"] != MAGIC:
        raise TraceError(f"{path}: not a rank trace (starts with {bytes(header['magic'])!r}, not {MAGIC!r})")
    if header["version"] != VERSION:
        raise TraceError(f"{path}: trace version {header['version']}, this reader knows {VERSION}")
    if header["rank"] >= header["world"]:
        raise TraceError(f"{path}: rank {header['rank']} of a world of {header['world']}")


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text at byte {error.start}") from error


def _read_table(path: Path) -> _Table:
    table = _Table({}, {}, {}, [], [], [], [])
    lines = _read_lines(path)
    for number, line in enumerate(lines):
        if line.strip():
            _add_line(path, table, line, last=number == len(lines) - 1)
    return table


def _add_line(path: Path, table: _Table, line: str, *, last: bool) -> None:
    # A rank killed in mid-write leaves half a last line; nothing was recorded that refers to it yet.
    try:
        members = json.loads(line)
    except (ValueError, RecursionError) as error:
        if last:
            return
        raise TraceError(f"{path}: not JSON: {line[:80]!r}") from error
    if not isinstance(members, dict):
        raise TraceError(f"{path}: not a JSON object: {line[:80]!r}")
    try:
        table.add(members)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: malformed line {line[:80]!r}: {error}") from error


def _local_communicator(line: dict[str, Any]) -> LocalCommunicator:
    size, rank = int(line["size"]), int(line["rank"])
    members = tuple(int(member) for member in line.get("members", ()))
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of a communicator of {size}")
    if members and len(members) != size:
        raise ValueError(f"{len(members)} members of a communicator of {size}")
    family = int(line["family"]) if "family" in line else None
    low, high = (int(place) for place in line.get("pair", (-1, -1)))
    return LocalCommunicator(str(line["id"]), size, rank, members, family, (low, high) if low >= 0 else None)


def _check_references(path: Path, records: NDArray[np.void], table: _Table) -> None:
    _check_known(path, "record kind", records["kind"], set(RecordKind))
    _check_known(path, "operation", records["op"], {0, *table.operations})
    _check_known(path, "context", records["context"], {0, *table.contexts})
    collectives = records[records["kind"] == RecordKind.COLLECTIVE]
    _check_known(path, "communicator", collectives["arg"], set(table.communicators))
    if (collectives["op"] == 0).any():
        raise TraceError(f"{path}: a collective without an operation")
    sizes = {index: communicator.size for index, communicator in table.communicators.items()}
    for index in np.unique(collectives["arg"]):
        peer = int(collectives["peer"][collectives["arg"] == index].max())
        if peer >= sizes[int(index)]:
            raise TraceError(
                f"{path}: peer {peer} of communicator {index}, which has {sizes[int(index)]} members"
            )
    if len(records) and int(max(records["host_ns"].max(), records["size"].max())) >= 1 << 62:
        raise TraceError(f"{path}: a host time or size beyond 2^62")


def _check_known(path: Path, what: str, column: NDArray[Any], known: set[int]) -> None:
    unknown = [int(value) for value in np.unique(column) if int(value) not in known]
    if unknown:
        listed = ", ".join(map(str, unknown[:5]))
        raise TraceError(f"{path}: records refer to {what} {listed}, which {path.stem}.ops does not have")
