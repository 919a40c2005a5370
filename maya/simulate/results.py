"""What a simulated iteration says beyond its length: critical path, communication, SM use, memory.

All of it is of the last simulated iteration.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from maya.clusters.types import Device
from maya.estimate import lapack
from maya.simulate.kinds import kinds_of
from maya.simulate.types import CommunicationTotal, RankTimeline, Stretch, Timeline
from maya.trace.operations import COLLECTIVES
from maya.trace.types import (
    DEVICE_WORK,
    Collective,
    JobTrace,
    Kernel,
    Lapack,
    Memcpy,
    Memset,
    Operation,
    RankTrace,
)

MILLISECOND_NS = 1_000_000
_STRETCHES = {Stretch.LAUNCH: "launch", Stretch.HOST: "host", Stretch.COMPLETION: "completion"}


def critical_path_s(trace: JobTrace, timeline: Timeline) -> dict[str, float]:
    """Seconds of the critical path by kind (kinds.KINDS), "host", "launch" and "completion"; largest first.

    They sum to the iteration: at each moment the path is at what everything after it waited for. Empty
    without a timeline.
    """
    path = timeline.critical_path
    if path is None:
        return {}
    kinds = kinds_of(trace.operations)
    seconds: defaultdict[str, float] = defaultdict(float)
    rows = zip(
        *(path[name].tolist() for name in ("begin_ns", "end_ns", "rank", "row", "stretch")), strict=True
    )
    for begin, end, rank, row, stretch in rows:
        operation = int(trace.ranks[rank].records["operation"][row]) if stretch == Stretch.DEVICE else -1
        kind = kinds[operation] if operation >= 0 else _STRETCHES.get(Stretch(stretch), "host")
        seconds[kind] += (end - begin) * 1e-9
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def communication(trace: JobTrace, timeline: Timeline) -> tuple[CommunicationTotal, ...]:
    """What goes over each communicator in each collective: of a rank that takes part, mean over these."""
    if not timeline.ranks:
        return ()
    calls = _calls(trace, timeline)
    kinds = kinds_of(trace.operations)
    names = np.array([COLLECTIVES.index(kind) if kind in COLLECTIVES else -1 for kind in kinds])
    moved = np.array([op.bytes if isinstance(op, Collective) else 0 for op in trace.operations])
    sizes = np.bincount(trace.class_of_rank, minlength=len(trace.ranks))
    key = calls["communicator"].astype(np.int64) * len(COLLECTIVES) + names[calls["operation"]]
    keys, of_call = np.unique(key, return_inverse=True)
    parties = np.unique(of_call.reshape(-1) * len(trace.ranks) + calls["class"])
    ranks = np.bincount(parties // len(trace.ranks), sizes[parties % len(trace.ranks)])
    weight = sizes[calls["class"]].astype(np.float64)
    amounts = (1.0, moved[calls["operation"]], calls["ns"] * 1e-9, calls["waiting_ns"] * 1e-9)
    means = [np.bincount(of_call.reshape(-1), weight * amount) / ranks for amount in amounts]
    totals = [
        CommunicationTotal(
            communicator=(shape := trace.communicators[number // len(COLLECTIVES)]).id,
            collective=COLLECTIVES[number % len(COLLECTIVES)],
            members=shape.members,
            instances=shape.instances,
            ranks=int(ranks[row]),
            calls=float(means[0][row]),
            bytes=float(means[1][row]),
            seconds=float(means[2][row]),
            waiting_s=float(means[3][row]),
        )
        for row, number in enumerate(keys.tolist())
    ]
    return tuple(sorted(totals, key=lambda total: -total.seconds))


# One row per collective or transfer of a class.
_CALL = np.dtype(
    [
        ("class", np.int64),
        ("communicator", np.int64),
        ("operation", np.int64),
        ("ns", np.float64),  # on the device
        ("waiting_ns", np.float64),  # of it before the last party had come
    ]
)


def kernel_shares(rank: RankTrace, operations: tuple[Operation, ...]) -> NDArray[np.float64]:
    """[records] How much of the time from its start to its end is each record's own.

    Members of a NCCL group run as one kernel, which each of them has from its start to its end: theirs is a part of it
    by their bytes.
    """
    records = rank.records
    shares = np.ones(len(records))
    members = np.flatnonzero((records["rendezvous"] >= 0) & (records["group"] > 0))
    if len(members):
        called = [operations[number] for number in records["operation"][members].tolist()]
        moved = np.array([max(op.bytes, 1) if isinstance(op, Collective) else 1 for op in called], np.float64)
        keys = np.stack([records["group"][members], records["stream"][members]], axis=1)
        kernel = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        shares[members] = moved / np.bincount(kernel, moved)[kernel]
    return shares


def _calls(trace: JobTrace, timeline: Timeline) -> NDArray[np.void]:
    complete = _last_arrivals(trace, timeline)
    tables = []
    for number, (rank, times) in enumerate(zip(trace.ranks, timeline.ranks, strict=True)):
        rows = np.flatnonzero(rank.records["rendezvous"] >= 0)
        calls = np.zeros(len(rows), _CALL)
        calls["class"] = number
        for name in ("communicator", "operation"):
            calls[name] = rank.records[name][rows]
        start, end = times.start[-1][rows], times.end[-1][rows]
        own = kernel_shares(rank, trace.operations)[rows]
        calls["ns"] = own * (end - start)
        last = complete[rank.records["rendezvous"][rows]]
        # a sender need not wait
        calls["waiting_ns"] = own * np.where(last <= end, np.maximum(last - start, 0), 0)
        tables.append(calls)
    return np.concatenate(tables)


def _last_arrivals(trace: JobTrace, timeline: Timeline) -> NDArray[np.int64]:
    """[rendezvous] When the last party's kernel began."""
    total = 1 + max((int(rank.records["rendezvous"].max(initial=-1)) for rank in trace.ranks), default=-1)
    last = np.zeros(total, np.int64)
    for rank, times in zip(trace.ranks, timeline.ranks, strict=True):
        rows = np.flatnonzero(rank.records["rendezvous"] >= 0)
        np.maximum.at(last, rank.records["rendezvous"][rows], times.start[-1][rows])
    return last


def sm_busy(
    rank: RankTrace,
    times: RankTimeline,
    operations: tuple[Operation, ...],
    device: Device,
    begin_ns: int,
    end_ns: int,
) -> NDArray[np.float64]:
    """[milliseconds] Share of a device's multiprocessors that have a block to run, in each millisecond.

    A kernel of fewer blocks than multiprocessors busies as many as it has blocks, NCCL's as many as its
    channels; matrix products, convolutions and fused attention count as whole, factorisations as their demand
    (maya/estimate/lapack.py), copies as nothing. The last millisecond is cut off at the iteration's end.
    """
    edges = np.append(np.arange(begin_ns, end_ns, MILLISECOND_NS), end_ns)
    share = np.array([_share_of_device(operation, device) for operation in operations] + [0.0])
    rows = np.flatnonzero(np.isin(rank.records["kind"], DEVICE_WORK))
    starts, ends, weights = [], [], []
    for iteration in range(times.start.shape[0]):
        starts.append(times.start[iteration][rows])
        ends.append(times.end[iteration][rows])
        weights.append(share[rank.records["operation"][rows]])
    return _mean_load(np.concatenate(starts), np.concatenate(ends), np.concatenate(weights), edges)


def _share_of_device(operation: Operation, device: Device) -> float:
    if isinstance(operation, Collective):
        return min(1.0, device.nccl_channels / device.multiprocessors)
    if isinstance(operation, Kernel):
        blocks = operation.grid[0] * operation.grid[1] * operation.grid[2]
        return min(1.0, blocks / device.multiprocessors)
    if isinstance(operation, Lapack):
        return lapack.demand(operation, device)
    return 0.0 if isinstance(operation, Memcpy | Memset) else 1.0


def _mean_load(
    start: NDArray[np.int64], end: NDArray[np.int64], weight: NDArray[np.float64], edges: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[edges - 1] Mean over each interval of the weights under way, never counted above 1."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    load = np.clip(np.cumsum(np.concatenate([weight, -weight])[order]), 0.0, 1.0)
    area = np.concatenate([[0.0], np.cumsum(load[:-1] * np.diff(times))])
    mean = np.diff(np.interp(edges, times, area)) / np.maximum(np.diff(edges), 1)
    return np.asarray(mean, np.float64)


def mean_sm_busy(trace: JobTrace, timeline: Timeline, device: Device) -> tuple[float, ...]:
    """[milliseconds] `sm_busy`, mean over all ranks; empty without a timeline."""
    if not timeline.ranks:
        return ()
    begin, end = last_iteration(timeline)
    sizes = np.bincount(trace.class_of_rank, minlength=len(trace.ranks))
    rows = [
        sm_busy(rank, times, trace.operations, device, begin, end)
        for rank, times in zip(trace.ranks, timeline.ranks, strict=True)
    ]
    return tuple(np.round(np.average(rows, axis=0, weights=sizes), 4).tolist())


def last_iteration(timeline: Timeline) -> tuple[int, int]:
    """Begin and end in ns."""
    ends = timeline.iteration_end_ns.tolist()
    return (ends[-2] if len(ends) > 1 else 0), ends[-1]


def memory_timeline(rank: RankTrace) -> tuple[tuple[float, int], ...]:
    """(optimizer steps done, bytes taken from the driver from then on) over the whole run, as recorded.

    The fraction of a step is how far its allocations were: there is no time in a recording. The context is
    counted from the beginning. Empty when allocations were not recorded.
    """
    allocations = rank.allocations
    if allocations is None or not len(allocations):
        return ()
    taken = np.cumsum(allocations["bytes"])
    context = rank.peak_reserved_bytes - int(taken.max())
    step, place = allocations["step"], allocations["record"]
    first = np.searchsorted(step, step)
    count = np.searchsorted(step, step, side="right") - first
    position = step + (np.arange(len(place)) - first) / count
    return tuple(zip(np.round(position, 4).tolist(), (taken + context).tolist(), strict=True))
