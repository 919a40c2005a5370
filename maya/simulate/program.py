"""Lays a job out in the flat arrays that the native core executes (core/program.h)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maya.simulate.kinds import memory_bound
from maya.simulate.types import SimulationError
from maya.trace.types import Collective, JobTrace, Operation, RecordKind


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
SENDS: Final = np.uint32(1 << 31)  # kSends
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
    lanes: int


def build_program(
    trace: JobTrace,
    records: NDArray[np.void],
    durations_ns: NDArray[np.int64],
    demand: NDArray[np.uint16],
    host_ns: NDArray[np.int64],
) -> Program:
    """`records` are those of all ranks, one after the other; `host_ns` has one entry for each, `durations_ns`
    and `demand` one for each operation.

    Raises SimulationError when the trace does not fit together.
    """
    rank_begin = np.cumsum([0, *(len(rank.records) for rank in trace.ranks)]).astype(np.uint32)
    rank_of = np.repeat(
        np.arange(len(trace.ranks), dtype=np.int32), [len(rank.records) for rank in trace.ranks]
    )
    action = _ACTION_OF_KIND[records["kind"]]
    _check(trace, records, action)

    base, end = (rank_begin[rank_of + of].astype(np.int64) for of in (0, 1))
    stream, stream_of, stream_begin, stream_flags = _streams(trace, records, rank_of)
    link, flags, events = _events(records, action, base, end)
    leader = _leaders(records, action, rank_of)
    duration = np.where(records["operation"] >= 0, durations_ns[records["operation"]], 0)
    duration[action > Action.TRANSFER] = 0
    members, sends = _members(trace, records, action)
    transfers = _transfers(members, sends, records["rendezvous"], leader, stream, duration, link)
    messages, lanes = _messages(trace, records, members, sends, stream)
    action = action.copy()
    action[leader != np.arange(len(records))] = Action.HOST
    # A wait for an event that was recorded before the job became steady holds nothing up.
    waits = (action == Action.STREAM_WAIT_EVENT) | (action == Action.EVENT_SYNCHRONIZE)
    action[waits & (records["wait"] == -1)] = Action.HOST
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
        "demand": demand[records["operation"]],
        "rank_begin": rank_begin,
        "stream_begin": stream_begin,
        "stream_flags": stream_flags,
        **transfers,
        **messages,
    }
    return Program(arrays, events, leader, stream_of, lanes)


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
    records: NDArray[np.void], action: NDArray[np.uint8], base: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.uint8], int]:
    """(event of each call, flags of each call, events): every EVENT_RECORD is an event of its own."""
    is_record = action == Action.EVENT_RECORD
    event_of = np.cumsum(is_record, dtype=np.int32) - np.int32(1)
    link = np.where(is_record, event_of, np.int32(0))
    flags = np.zeros(len(records), np.uint8)
    waits = np.flatnonzero((records["wait"] != -1) & ~is_record)
    wait = records["wait"][waits]
    target = np.where(wait < 0, end[waits], base[waits]) + wait
    if len(waits) and ((target >= len(records)).any() or not is_record[target].all()):
        raise SimulationError("a wait for something that is no event record")
    link[waits] = event_of[target]
    flags[waits[(wait < 0) | (target > waits)]] = PREVIOUS_ITERATION
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


def _members(
    trace: JobTrace, records: NDArray[np.void], action: NDArray[np.uint8]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """(calls that meet others, by rendezvous and senders first; [calls] whether it sends a message)."""
    is_send = [isinstance(op, Collective) and op.collective == "send" for op in trace.operations]
    sends = np.array([*is_send, False])[records["operation"]]
    calls = np.flatnonzero(action == Action.TRANSFER)
    order = np.argsort(records["rendezvous"][calls].astype(np.int64) * 2 + ~sends[calls], kind="stable")
    return calls[order], sends


def _transfers(
    members: NDArray[np.intp],
    sends: NDArray[np.bool_],
    rendezvous: NDArray[np.int32],
    leader: NDArray[np.int64],
    stream: NDArray[np.uint32],
    duration: NDArray[np.int64],
    link: NDArray[np.int32],
) -> dict[str, NDArray[Any]]:
    """Parties of each rendezvous and rendezvous of each kernel; sets `link` of the leaders.

    A rendezvous takes as long as the slowest party's operation says.
    """
    number = rendezvous[members]
    total = int(number.max(initial=-1)) + 1
    party_begin = np.searchsorted(number, np.arange(total + 1)).astype(np.uint32)
    transfer_duration = np.zeros(total, np.int64)
    np.maximum.at(transfer_duration, number, duration[members])

    in_order = np.sort(members)
    by_leader = in_order[np.argsort(leader[in_order], kind="stable")]
    leaders, first, count = np.unique(leader[by_leader], return_index=True, return_counts=True)
    link[leaders] = first
    counts = np.zeros(len(rendezvous), np.int32)
    counts[leaders] = count
    return {
        "count": counts,
        "transfers": rendezvous[by_leader].astype(np.uint32)
        | np.where(sends[by_leader], SENDS, np.uint32(0)),
        "party_begin": party_begin,
        "party_stream": stream[members],
        "transfer_duration": transfer_duration,
    }


def _messages(
    trace: JobTrace,
    records: NDArray[np.void],
    members: NDArray[np.intp],
    sends: NDArray[np.bool_],
    stream: NDArray[np.uint32],
) -> tuple[dict[str, NDArray[Any]], int]:
    """(lane and bytes of each rendezvous of a send with its receive; lanes): a lane is what a communicator carries
    from one rank to another. Both arrays are empty where nothing is sent."""
    number = records["rendezvous"][members]
    senders = members[:-1][sends[members[:-1]] & (number[:-1] == number[1:])]
    if not len(senders):
        return {"lane_of": np.empty(0, np.int32), "message": np.empty(0, np.int64)}, 0
    distances = np.array([_distance(operation) for operation in trace.operations])
    sizes = np.array([op.bytes if isinstance(op, Collective) else 0 for op in trace.operations])
    key = (records["communicator"][senders].astype(np.int64) << 32 | stream[senders]) * trace.world
    _, lane = np.unique(key + distances[records["operation"][senders]], return_inverse=True)
    lane_of, message = np.full(int(number.max()) + 1, -1, np.int32), np.zeros(int(number.max()) + 1, np.int64)
    lane_of[records["rendezvous"][senders]] = lane
    message[records["rendezvous"][senders]] = sizes[records["operation"][senders]]
    return {"lane_of": lane_of, "message": message}, int(lane.max()) + 1


def _distance(operation: Operation) -> int:
    """From a sender to its receiver, in places of their communicator."""
    if not isinstance(operation, Collective) or operation.rank is None or operation.peer is None:
        return 0
    here, there = (operation.members.index(rank) for rank in (operation.rank, operation.peer))
    return (there - here) % len(operation.members)
