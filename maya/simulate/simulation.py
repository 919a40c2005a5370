"""`simulate`: a job's steady iteration, replayed back to back by the native core."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maya.clusters.types import Cluster, Device
from maya.simulate import _core
from maya.simulate.network import ONE, Network, no_network
from maya.simulate.program import Program, build_program
from maya.simulate.types import INSTANT, PATH, Activity, HostCosts, RankTimeline, SimulationError, Timeline
from maya.trace.types import Collective, JobTrace, RecordKind

TRANSFER_CHANNELS: Final = 2  # of a send or receive: NCCL's p2p channels per peer between two devices
DEMAND_UNIT: Final = _core.DEMAND_UNIT
CHANNEL_BYTES: Final = 4 << 20  # that a channel buffers: NCCL's default NCCL_BUFFSIZE
_SHOWN: Final = 12  # waiting calls that a deadlock's message lists


def simulate(
    trace: JobTrace,
    durations_s: NDArray[np.float64],
    cluster: Cluster,
    iterations: int = 3,
    *,
    host: HostCosts = HostCosts(),  # noqa: B008 (frozen)
    network: Network | None = None,
    demand: NDArray[np.float64] | None = None,
    keep_timeline: bool = True,
    buffered_bytes: int = TRANSFER_CHANNELS * CHANNEL_BYTES,
) -> Timeline:
    """Replays the steady iteration `iterations` times, each operation taking its entry of `durations_s`.

    `durations_s` has shape [operations]. A collective takes as long as the slowest of its parties'
    operations says, from the moment the last party arrives, and longer where `network` says that it shares
    links with others under way; without one it never does. `demand` [operations] is the share of the
    multiprocessors or the memory bandwidth that work takes alone; None: all of it. A send goes on without its receive
    while it and those before it from one rank to another take no more than `buffered_bytes`. Without `keep_timeline`
    only the iteration ends and activities are kept. Raises SimulationError for a deadlock, or for durations or
    demands that are none.
    """
    if iterations < 1:
        raise SimulationError(f"{iterations} iterations")
    if not trace.ranks:
        raise SimulationError("a job without ranks")
    records = np.concatenate([rank.records for rank in trace.ranks])
    durations_ns, host_ns = _durations(trace, durations_s), _host_times(records, cluster)
    program = build_program(trace, records, durations_ns, in_units(trace, demand), host_ns)
    network = network or no_network(len(program.arrays["transfer_duration"]))
    calls = len(records) if keep_timeline else 0
    results = {name: np.zeros(calls * iterations, np.int64) for name in ("issued", "start", "end")}
    results["iteration_end"] = np.zeros(iterations, np.int64)
    results["activity"] = np.zeros(iterations * len(trace.ranks) * len(Activity), np.int64)
    scalars = _scalars(program, cluster, host, iterations) | {"lane_bytes": buffered_bytes}
    arrays = _aligned({**program.arrays, **network.arrays})
    events, stuck, path = _core.run({**arrays, **scalars}, results)
    if stuck:
        raise SimulationError(_deadlock(trace, program, stuck))
    ranks = _rank_timelines(trace, program, results, iterations) if keep_timeline else ()
    activity = results["activity"].reshape(iterations, len(trace.ranks), -1)
    critical_path = _critical_path(program, path) if keep_timeline else None
    return Timeline(ranks, results["iteration_end"], activity, events, critical_path)


def _aligned(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The core reads arrays where they lie: a column of one record alone is contiguous, but need not be aligned."""
    return {name: np.require(array, requirements=["C", "A"]) for name, array in arrays.items()}


def _critical_path(program: Program, path: list[tuple[int, int, int, int]]) -> NDArray[np.void]:
    """dtype PATH, first step first."""
    steps = np.array([(begin, end, 0, call, stretch) for begin, end, call, stretch in reversed(path)], PATH)
    begin = program.arrays["rank_begin"].astype(np.int64)
    steps["rank"] = np.searchsorted(begin, steps["row"], side="right") - 1
    steps["row"] -= begin[steps["rank"]]
    return steps


def simulate_without_host(
    trace: JobTrace,
    durations_s: NDArray[np.float64],
    cluster: Cluster,
    iterations: int,
    network: Network,
    demand: NDArray[np.float64] | None = None,
) -> Timeline:
    """The same job with hosts that take no time, without a timeline: what is left is the devices' own."""
    timeless = cluster.model_copy(update={"host_speed": float("inf")})
    return simulate(
        trace,
        durations_s,
        timeless,
        iterations,
        host=INSTANT,
        network=network,
        demand=demand,
        keep_timeline=False,
    )


def _scalars(program: Program, cluster: Cluster, host: HostCosts, iterations: int) -> dict[str, int]:
    device = cluster.device
    return {
        "events": program.events,
        "lanes": program.lanes,
        "iterations": iterations,
        "queue_depth": host.queue_depth,
        "launch_call": _nanoseconds(host.launch_s / cluster.host_speed),
        "launch_latency": _nanoseconds(device.launch_latency_s),
        "completion_latency": _nanoseconds(host.completion_s),
        "collective_occupies": multiprocessors(device.nccl_channels, device),
        "transfer_occupies": multiprocessors(TRANSFER_CHANNELS, device),
    }


def multiprocessors(channels: int, device: Device) -> int:
    """Share of the device, in 1 / ONE, that a NCCL kernel of that many channels takes: a channel is one block,
    and runs on one multiprocessor (NCCL, src/enqueue.cc: the grid of a kernel is its channels)."""
    return ONE * min(channels, device.nccl_channels) // device.multiprocessors


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _durations(trace: JobTrace, durations_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """[operations + 1] Nanoseconds; the entry behind the last stands for no operation."""
    if durations_s.shape != (len(trace.operations),):
        raise SimulationError(
            f"durations of shape {durations_s.shape} for {len(trace.operations)} operations"
        )
    wrong = np.flatnonzero(~(np.isfinite(durations_s) & (durations_s >= 0)))
    if len(wrong):
        row = int(wrong[0])
        raise SimulationError(f"a duration of {durations_s[row]} s for {trace.operations[row]}")
    return np.append(np.rint(durations_s * 1e9), 0).astype(np.int64)


def in_units(trace: JobTrace, demand: NDArray[np.float64] | None) -> NDArray[np.uint16]:
    """[operations + 1] As the core counts `demand`; the entry behind the last stands for no operation."""
    shares = np.ones(len(trace.operations)) if demand is None else demand
    if shares.shape != (len(trace.operations),) or not ((shares >= 0) & (shares <= 1)).all():
        raise SimulationError(f"demands that are not {len(trace.operations)} shares of a device")
    units: NDArray[np.uint16] = np.rint(np.append(shares, 0.0) * (ONE // DEMAND_UNIT)).astype(np.uint16)
    return units


def _host_times(records: NDArray[np.void], cluster: Cluster) -> NDArray[np.int64]:
    if cluster.host_speed == 1:
        return np.ascontiguousarray(records["host_ns"])
    scaled: NDArray[np.float64] = records["host_ns"] / cluster.host_speed
    return np.rint(scaled).astype(np.int64)


def _rank_timelines(
    trace: JobTrace,
    program: Program,
    results: dict[str, NDArray[np.int64]],
    iterations: int,
) -> tuple[RankTimeline, ...]:
    timelines = []
    begin = program.arrays["rank_begin"].astype(np.int64)
    for rank, first, last in zip(trace.ranks, begin[:-1], begin[1:], strict=True):
        part = slice(first * iterations, last * iterations)
        leader = program.leader[first:last] - first
        shape = (iterations, int(last - first))
        timelines.append(
            RankTimeline(
                rank=rank.rank,
                host_ns=program.arrays["host"][first:last],
                issued=results["issued"][part].reshape(shape),
                start=results["start"][part].reshape(shape)[:, leader],
                end=results["end"][part].reshape(shape)[:, leader],
            )
        )
    return tuple(timelines)


def _deadlock(trace: JobTrace, program: Program, stuck: list[tuple[int, int, int]]) -> str:
    """Who waits where and for what, streams before hosts: a host usually waits for its streams."""
    begin = program.arrays["rank_begin"]
    lines = []
    for rank_class, call, stream in sorted(stuck, key=lambda one: one[2] < 0):
        rank = trace.ranks[rank_class]
        row = call - int(begin[rank_class])
        where = f"stream {program.stream_of[stream]}" if stream >= 0 else "host"
        lines.append(f"rank {rank.rank}, {where}: call {row}, {_describe(trace, rank.records[row])}")
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "deadlock; these wait for each other:\n  " + "\n  ".join(lines[:_SHOWN] + more)


def _describe(trace: JobTrace, record: np.void) -> str:
    kind = RecordKind(record["kind"])
    if kind is not RecordKind.COLLECTIVE:
        return kind.name.lower()
    operation = trace.operations[record["operation"]]
    assert isinstance(operation, Collective)
    peer = "" if operation.peer is None else f" with rank {operation.peer}"
    return f"{operation.collective}{peer} {record['sequence']} on communicator {record['communicator']}"
