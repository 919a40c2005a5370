"""The native core equals the plain Python simulation to the bit, on jobs nobody thought of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.clusters import Cluster
from maya.simulate import HostCosts, SimulationError, simulate
from maya.simulate.network import ONE, Network
from maya.simulate.reference import Reference
from maya.simulate.simulation import TRANSFER_CHANNELS, multiprocessors
from maya.simulate.types import Timeline
from maya.trace.build import JobBuilder, RankBuilder
from maya.trace.types import JobTrace

COSTS = st.tuples(st.sampled_from([0, 3]), st.sampled_from([1, 2, 5, 1024]))
TIME = st.integers(0, 20)
BUFFERS = st.sampled_from([0, 12, 40, 1 << 23])  # beside messages of 0 to 20 bytes
DRAWS = st.sampled_from([0, ONE // 7, ONE])


def local_call(draw: st.DrawFn, rank: RankBuilder) -> None:
    stream, event, host = draw(st.integers(0, 3)), draw(st.integers(0, 2)), draw(TIME)
    match draw(st.integers(0, 8)):
        case 0 | 1 | 2:
            rank.kernel(draw(TIME), stream, host_ns=host, blocking=draw(st.booleans()))
        case 3:
            rank.event_record(event, stream, host_ns=host)
        case 4:
            rank.stream_wait_event(event, stream, host_ns=host)
        case 5:
            rank.event_synchronize(event, host_ns=host)
        case 6:
            rank.stream_synchronize(stream, host_ns=host)
        case 7:
            rank.device_synchronize(host_ns=host)
        case 8:
            rank.gemm(draw(TIME), stream, host_ns=host)


@st.composite
def jobs(draw: st.DrawFn) -> JobBuilder:
    """Ranks that do work of their own between things they do together; some of them deadlock."""
    world = draw(st.integers(1, 3))
    job = JobBuilder(world)
    everyone = job.communicator(range(world))
    blocking = draw(st.sampled_from([(), (1,), (1, 2)]))
    launch_blocking = draw(st.booleans())
    for group in range(1, draw(st.integers(1, 6))):
        stream, length, together = draw(st.integers(0, 3)), draw(TIME), draw(st.integers(0, 3))
        for rank in job.ranks:
            rank.blocking_streams, rank.launch_blocking = blocking, launch_blocking
            for _ in range(draw(st.integers(0, 3))):
                local_call(draw, rank)
            following, previous = (rank.rank + 1) % world, (rank.rank - 1) % world
            if together == 0:
                rank.collective(everyone, length, stream, host_ns=draw(TIME))
            elif together == 1 and world > 1:
                rank.send(everyone, following, length, stream, group=group)
                rank.recv(everyone, previous, draw(TIME), stream, group=group)
            elif together == 3 and world > 1:
                rank.send(everyone, following, length, stream)
                rank.recv(everyone, previous, draw(TIME), stream)
            elif together == 2 and world > 1 and rank.rank < 2:
                direction = rank.send if rank.rank == 0 else rank.recv
                direction(everyone, 1 - rank.rank, length, stream)
    for rank in job.ranks:
        rank.step(host_ns=draw(TIME))
    return job


def wait_an_iteration_longer(trace: JobTrace) -> None:
    """All waits for events of their own iteration are for those that the iteration before recorded there."""
    for rank in trace.ranks:
        wait = rank.records["wait"]
        wait[(wait >= 0) & (wait < np.arange(len(wait)))] -= len(wait)


@st.composite
def networks(draw: st.DrawFn, transfers: int = 64) -> Network:
    """Up to four links and patterns of use that nobody thought of; some fill a link by themselves."""
    links = draw(st.integers(1, 4))
    patterns = []
    for _ in range(draw(st.integers(1, 4))):
        used = draw(st.lists(st.integers(0, links - 1), min_size=1, unique=True))
        uses = [draw(st.integers(1, 10 * ONE // 4)) for _ in used]
        peak = max(min(max(uses), ONE), ONE // 1024)
        patterns.append((peak, sorted(zip(used, uses, strict=True))))
    hops = [hop for _, own in patterns for hop in own]
    flow_of = st.lists(st.integers(-1, len(patterns) - 1), min_size=transfers, max_size=transfers)
    return Network(
        flow_of=np.array(draw(flow_of), np.int32),
        flow_peak=np.array([peak for peak, _ in patterns], np.int64),
        flow_begin=np.cumsum([0, *(len(own) for _, own in patterns)]).astype(np.uint32),
        flow_link=np.array([link for link, _ in hops], np.uint32),
        flow_use=np.array([use for _, use in hops], np.int64),
        flow_share=np.array([use * ONE // peak for peak, own in patterns for _, use in own], np.int64),
        draws=np.array(draw(st.lists(DRAWS, min_size=transfers, max_size=transfers)), np.int64),
        links=links,
    )  # fmt: skip


@settings(max_examples=400)
@given(
    job=jobs(),
    costs=COSTS,
    latency=st.sampled_from([0, 4]),
    completion=st.sampled_from([0, 3]),
    network=st.none() | networks(),
    channels=st.sampled_from([0, 16, 100]),
    buffered=BUFFERS,
    shares=st.none() | st.lists(st.sampled_from([0.0, 0.3, 0.7, 1.0]), min_size=1, max_size=4),
    late=st.booleans(),
)
def test_native_core_equals_the_reference(
    ideal_cluster: Cluster,
    job: JobBuilder,
    costs: tuple[int, int],
    latency: int,
    completion: int,
    network: Network | None,
    channels: int,
    buffered: int,
    shares: list[float] | None,
    late: bool,
) -> None:
    demand = None if shares is None else np.resize(shares, len(job.durations_s))
    trace, (launch, depth) = job.build(), costs
    if late:
        wait_an_iteration_longer(trace)
    changed = {"launch_latency_s": latency * 1e-9, "nccl_channels": channels}
    device = ideal_cluster.device.model_copy(update=changed)
    cluster = ideal_cluster.model_copy(update={"device": device})
    reference = Reference(
        trace,
        np.rint(job.durations_s * 1e9).astype(np.int64),
        launch_call=launch,
        launch_latency=latency,
        completion_latency=completion,
        queue_depth=depth,
        network=network,
        collective_occupies=multiprocessors(channels, device),
        transfer_occupies=multiprocessors(TRANSFER_CHANNELS, device),
        buffered_bytes=buffered,
        demand=demand,
    )
    host = HostCosts(launch * 1e-9, completion * 1e-9, depth)

    def native() -> Timeline:
        return simulate(
            trace,
            job.durations_s,
            cluster,
            host=host,
            network=network,
            demand=demand,
            buffered_bytes=buffered,
        )

    try:
        expected = reference.run()
    except SimulationError:
        with pytest.raises(SimulationError, match="deadlock"):
            native()
        return
    timeline = native()
    assert timeline.iteration_end_ns.tolist() == expected.iteration_end_ns.tolist()
    assert timeline.activity_ns.tolist() == expected.activity_ns.tolist()
    for number, rank in enumerate(timeline.ranks):
        for name in ("issued", "start", "end"):
            own, other = getattr(rank, name), getattr(expected, name)[number]
            assert own.tolist() == other.tolist(), (number, name)
    assert (timeline.activity_ns.sum(axis=2) == timeline.iterations_ns[:, None]).all()


@settings(max_examples=200)
@given(job=jobs(), network=st.none() | networks(), costs=COSTS, buffered=BUFFERS)
def test_nothing_happens_before_its_cause(
    ideal_cluster: Cluster, job: JobBuilder, network: Network | None, costs: tuple[int, int], buffered: int
) -> None:
    trace = job.build()
    host = HostCosts(costs[0] * 1e-9, 3e-9, costs[1])

    def timeline_of() -> Timeline:
        return simulate(
            trace, job.durations_s, ideal_cluster, network=network, host=host, buffered_bytes=buffered
        )

    try:
        timeline = timeline_of()
    except SimulationError:
        return
    path = timeline.critical_path
    assert path is not None
    ends = [*timeline.iteration_end_ns.tolist()][-2:]
    if len(path):
        assert [path["begin_ns"][0], path["end_ns"][-1]] == ends
        assert (path["begin_ns"][1:] == path["end_ns"][:-1]).all()
    else:
        assert ends[0] == ends[1]
    for rank, own in zip(trace.ranks, timeline.ranks, strict=True):
        assert (own.start >= own.issued).all() and (own.end >= own.start).all()
        waits = np.flatnonzero(
            (rank.records["wait"] >= 0) & (rank.records["wait"] < np.arange(own.end.shape[1]))
        )
        assert (own.end[:, waits] >= own.end[:, rank.records["wait"][waits]]).all()
    again = timeline_of()
    for one, other in zip(timeline.ranks, again.ranks, strict=True):
        assert (one.end == other.end).all()
