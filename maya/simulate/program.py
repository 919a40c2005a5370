"""Lays a job out in the flat arrays that the native core executes (core/program.h)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maya.simulate.kinds import memory_bound
from maya.simulate.types import SimulationError
from maya.trace.types import JobTrace, RecordKind


class Action(IntEnum):
    """Mirrors `Action` in core/program.h."""

    WORK = 0
    TRANSFER = 1
    EVENT_RECORD = 2
    STREAM_WAIT_EVENT = 3
    EVENT_SYNCHRONIZE = 4
    STREAM_SYNCHRONIZE = 5
    DEVICE_SYNCHRONIZE = 6
    HOST = 7


BLOCKING, NO_LAUNCH, PREVIOUS_ITERATION, POINT_TO_POINT, MEMORY_BOUND = 1, 2, 4, 8, 16  # CallFlags
ORDINARY, LEGACY_DEFAULT, SYNCHRONISES_WITH_DEFAULT = 0, 1, 2  # StreamFlags

_ACTION_OF_KIND = np.full(256, Action.HOST, np.uint8)
for _kind in (RecordKind.KERNEL, RecordKind.MEMCPY, RecordKind.MEMSET):
    _ACTION_OF_KIND[_kind] = Action.WORK
_ACTION_OF_KIND[RecordKind.COLLECTIVE] = Action.TRANSFER
for _name in (
    "EVENT_RECORD",
    "STREAM_WAIT_EVENT",
    "EVENT_SYNCHRONIZE",
    "STREAM_SYNCHRONIZE",
    "DEVICE_SYNCHRONIZE",
):
    _ACTION_OF_KIND[RecordKind[_name]] = Action[_name]


@dataclass(frozen=True)
class Program:
    """`arrays` are the core's arguments of the same names. `leader` [calls] is the call that a record runs
    in: of a NCCL group the last on its stream, where the group's kernel is launched; else itself."""

    arrays: dict[str, NDArray[Any]]
    events: int
    leader: NDArray[np.int64]
    stream_of: NDArray[np.uint32]  # [streams] the trace's number of each stream


def build_program(
    trace: JobTrace, records: NDArray[np.void], durations_ns: NDArray[np.int64], host_ns: NDArray[np.int64]
) -> Program:
    """`records` are those of all ranks, one after the other; `host_ns` has one entry for each, `durations_ns`
    one for each operation.

    Raises SimulationError when the trace does not fit together.
    """
    rank_begin = np.cumsum([0, *(len(rank.records) for rank in trace.ranks)]).astype(np.uint32)
    rank_of = np.repeat(
        np.arange(len(trace.ranks), dtype=np.int32), [len(rank.records) for rank in trace.ranks]
    )
    action = _ACTION_OF_KIND[records["kind"]]
    _check(trace, records, action)

    base = rank_begin[rank_of].astype(np.int64)
    stream, stream_of, stream_begin, stream_flags = _streams(trace, records, rank_of)
    link, flags, events = _events(records, action, base)
    leader = _leaders(records, action, rank_of)
    duration = np.where(records["operation"] >= 0, durations_ns[records["operation"]], 0)
    duration[action > Action.TRANSFER] = 0
    transfers = _transfers(records["rendezvous"], action, leader, stream, duration, link)
    action = action.copy()
    action[leader != np.arange(len(records))] = Action.HOST
    # A wait for an event that was recorded before the job became steady holds nothing up.
    waits = (action == Action.STREAM_WAIT_EVENT) | (action == Action.EVENT_SYNCHRONIZE)
    action[waits & (records["wait"] < 0)] = Action.HOST
    for bit, chosen in (
        (BLOCKING, records["blocking"]),
        (NO_LAUNCH, records["graph"]),
        (POINT_TO_POINT, records["peer_class"] >= 0),
        (MEMORY_BOUND, np.append(memory_bound(trace.operations), False)[records["operation"]]),
    ):
        flags[chosen] |= bit
    arrays: dict[str, NDArray[Any]] = {
        "action": action,
        "flags": flags,
        "stream": stream,
        "link": link,
        "host": host_ns,
        "duration": duration,
        "rank_begin": rank_begin,
        "stream_begin": stream_begin,
        "stream_flags": stream_flags,
        **transfers,
    }
    return Program(arrays, events, leader, stream_of)


def _check(trace: JobTrace, records: NDArray[np.void], action: NDArray[np.uint8]) -> None:
    if len(records) >= 1 << 31:
        raise SimulationError(f"{len(records)} records, more than 2^31")
    if (records["operation"] >= len(trace.operations)).any():
        raise SimulationError(f"an operation beyond the {len(trace.operations)} of the job")
    work = action <= Action.TRANSFER
    if (records["operation"][work] < 0).any():
        raise SimulationError("device work without an operation")
    if (records["rendezvous"][action == Action.TRANSFER] < 0).any():
        raise SimulationError("a collective without a rendezvous")


def _streams(
    trace: JobTrace, records: NDArray[np.void], rank_of: NDArray[np.int32]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint8]]:
    """Streams numbered over all ranks: of each call, their number in the trace, first a rank, flags."""
    most = 1 + int(records["stream"].max(initial=0))  # streams are numbered densely in each rank
    key = rank_of.astype(np.int64) * most + records["stream"]
    used = np.zeros(len(trace.ranks) * most, np.bool_)
    used[key] = True
    stream = (np.cumsum(used, dtype=np.uint32) - np.uint32(1))[key]
    owner, number = np.divmod(np.flatnonzero(used), most)
    number = number.astype(np.uint32)
    begin = np.searchsorted(owner, np.arange(len(trace.ranks) + 1)).astype(np.uint32)
    flags = np.full(len(number), ORDINARY, np.uint8)
    for rank, first, last in zip(trace.ranks, begin[:-1], begin[1:], strict=True):
        blocking = np.isin(number[first:last], rank.blocking_streams) & (number[first:last] != 0)
        if blocking.any():
            flags[first:last][blocking] = SYNCHRONISES_WITH_DEFAULT
            flags[first:last][number[first:last] == 0] = LEGACY_DEFAULT
    return stream, number, begin, flags


def _events(
    records: NDArray[np.void], action: NDArray[np.uint8], base: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.uint8], int]:
    """(event of each call, flags of each call, events): every EVENT_RECORD is an event of its own."""
    is_record = action == Action.EVENT_RECORD
    event_of = np.cumsum(is_record, dtype=np.int32) - np.int32(1)
    link = np.where(is_record, event_of, np.int32(0))
    flags = np.zeros(len(records), np.uint8)
    waits = np.flatnonzero((records["wait"] >= 0) & ~is_record)
    target = base[waits] + records["wait"][waits]
    if len(waits) and ((target >= len(records)).any() or not is_record[target].all()):
        raise SimulationError("a wait for something that is no event record")
    link[waits] = event_of[target]
    flags[waits[target > waits]] = PREVIOUS_ITERATION
    return link, flags, int(is_record.sum())


def _leaders(
    records: NDArray[np.void], action: NDArray[np.uint8], rank_of: NDArray[np.int32]
) -> NDArray[np.int64]:
    leader = np.arange(len(records))
    grouped = np.flatnonzero((action == Action.TRANSFER) & (records["group"] > 0))
    if len(grouped):
        keys = np.stack([rank_of[grouped], records["group"][grouped], records["stream"][grouped]], axis=1)
        _, inverse = np.unique(keys, axis=0, return_inverse=True)
        last = np.zeros(int(inverse.max()) + 1, np.int64)
        np.maximum.at(last, inverse.reshape(-1), grouped)
        leader[grouped] = last[inverse.reshape(-1)]
    return leader


def _transfers(
    rendezvous: NDArray[np.int32],
    action: NDArray[np.uint8],
    leader: NDArray[np.int64],
    stream: NDArray[np.uint32],
    duration: NDArray[np.int64],
    link: NDArray[np.int32],
) -> dict[str, NDArray[Any]]:
    """Parties of each rendezvous and rendezvous of each kernel; sets `link` of the leaders.

    A rendezvous takes as long as the slowest party's operation says.
    """
    members = np.flatnonzero(action == Action.TRANSFER)
    number = rendezvous[members]
    total = int(number.max(initial=-1)) + 1
    by_rendezvous = members[np.argsort(number, kind="stable")]
    party_begin = np.searchsorted(np.sort(number), np.arange(total + 1)).astype(np.uint32)
    transfer_duration = np.zeros(total, np.int64)
    np.maximum.at(transfer_duration, number, duration[members])

    by_leader = members[np.argsort(leader[members], kind="stable")]
    leaders, first, count = np.unique(leader[by_leader], return_index=True, return_counts=True)
    link[leaders] = first
    counts = np.zeros(len(action), np.int32)
    counts[leaders] = count
    return {
        "count": counts,
        "transfers": rendezvous[by_leader].astype(np.uint32),
        "party_begin": party_begin,
        "party_stream": stream[by_rendezvous],
        "transfer_duration": transfer_duration,
    }
