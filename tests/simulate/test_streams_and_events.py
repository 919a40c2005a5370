"""CUDA's semantics on one rank, with free launches: times can be read off the calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from maya.clusters import Cluster
from maya.simulate import HostCosts, SimulationError, simulate
from maya.simulate.results import critical_path_s
from maya.simulate.types import Activity, Timeline
from maya.trace.build import JobBuilder

Simulate = Callable[..., Timeline]


def spans(timeline: Timeline, iteration: int = 0, rank: int = 0) -> list[tuple[int, int]]:
    own = timeline.ranks[rank]
    return list(zip(own.start[iteration].tolist(), own.end[iteration].tolist(), strict=True))


def test_kernels_of_a_stream_run_in_order(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    job.ranks[0].kernel(10)
    job.ranks[0].kernel(20)
    assert spans(simulate_ideal(job)) == [(0, 10), (10, 30)]


def test_kernels_of_two_streams_overlap(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    job.ranks[0].kernel(10, stream=1)
    job.ranks[0].kernel(20, stream=2)
    assert spans(simulate_ideal(job)) == [(0, 10), (0, 20)]


@pytest.mark.parametrize(
    ("demand", "first", "second"),
    [
        (1.0, 20, 30),  # at half their rates until the first has ended
        (0.8, 16, 26),  # 0.5 / 0.8 of their rates
        (0.5, 10, 20),
    ],
)
def test_work_of_two_streams_shares_the_device(
    simulate_ideal: Simulate, demand: float, first: int, second: int
) -> None:
    for put in ("kernel", "gemm"):
        job = JobBuilder(1)
        getattr(job.ranks[0], put)(10, stream=1)
        getattr(job.ranks[0], put)(20, stream=2)
        assert spans(simulate_ideal(job, 1, demand=demand)) == [(0, first), (0, second)]


def test_products_leave_the_memory_to_kernels_beside_them(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    job.ranks[0].kernel(10, stream=1)
    job.ranks[0].gemm(20, stream=2)
    assert spans(simulate_ideal(job, 1, demand=1.0)) == [(0, 10), (0, 20)]


def test_stream_waits_for_recorded_event(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.kernel(10, stream=1)
    rank.event_record(1, stream=1)
    rank.kernel(50, stream=1)
    rank.stream_wait_event(1, stream=2)
    rank.kernel(5, stream=2)
    assert spans(simulate_ideal(job))[4] == (10, 15)


def test_event_recorded_by_the_iteration_before_is_waited_for(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.stream_wait_event(1, stream=2)
    rank.kernel(5, stream=2)
    rank.kernel(100, stream=1)
    rank.event_record(1, stream=1)
    timeline = simulate_ideal(job)
    assert spans(timeline, 0)[1] == (0, 5)
    assert spans(timeline, 1)[1] == (100, 105)


def test_host_that_keeps_one_iteration_ahead_of_the_device(ideal_cluster: Cluster) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.kernel(100)
    rank.event_record(1)
    rank.event_synchronize(1)
    trace = job.build()
    trace.ranks[0].records["wait"][2] = 1 - 3  # the iteration before's
    host = HostCosts(0, 4e-9, 1024)
    timeline = simulate(trace, job.durations_s, ideal_cluster, host=host)
    assert timeline.ranks[0].issued[:, 0].tolist() == [0, 0, 104]


def test_event_never_recorded_holds_nothing_up(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    job.ranks[0].stream_wait_event(9)
    job.ranks[0].event_synchronize(9)
    job.ranks[0].kernel(7)
    assert spans(simulate_ideal(job))[2] == (0, 7)


@pytest.mark.parametrize("how", ["event", "stream", "device", "blocking"])
def test_host_blocks_until_the_work_is_done(simulate_ideal: Simulate, how: str) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.kernel(100, stream=1, blocking=how == "blocking")
    if how == "event":
        rank.event_record(1, stream=1)
        rank.event_synchronize(1)
    elif how == "stream":
        rank.stream_synchronize(1)
    elif how == "device":
        rank.device_synchronize()
    rank.kernel(5, stream=2, host_ns=3)
    assert spans(simulate_ideal(job))[-1] == (103, 108)


def test_stream_synchronize_leaves_other_streams_alone(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.kernel(100, stream=1)
    rank.kernel(10, stream=2)
    rank.stream_synchronize(2)
    rank.kernel(1, stream=3)
    assert spans(simulate_ideal(job))[3] == (10, 11)


def test_full_launch_queue_blocks_the_host(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    for _ in range(4):
        rank.kernel(10, stream=1)
    rank.kernel(1, stream=2)
    timeline = simulate_ideal(job, iterations=1, queue_depth=2)
    assert timeline.ranks[0].start[0].tolist() == [0, 10, 20, 30, 20]


def test_small_kernels_are_launch_bound(ideal_cluster: Cluster) -> None:
    job = JobBuilder(1)
    for _ in range(10):
        job.ranks[0].kernel(100, host_ns=1000)
    job.ranks[0].step()
    timeline = simulate(job.build(), job.durations_s, ideal_cluster, host=HostCosts(launch_s=2e-6))
    assert timeline.iterations_ns[1:].tolist() == [30_000, 30_000]
    assert timeline.activity_ns[1, 0, Activity.COMPUTE] == 1000


def test_launch_latency_and_host_speed(ideal_cluster: Cluster) -> None:
    device = ideal_cluster.device.model_copy(update={"launch_latency_s": 5e-6})
    cluster = ideal_cluster.model_copy(update={"device": device, "host_speed": 2.0})
    job = JobBuilder(1)
    job.ranks[0].kernel(100, host_ns=1000)
    job.ranks[0].kernel(100, host_ns=1000)
    timeline = simulate(job.build(), job.durations_s, cluster, 1, host=HostCosts(launch_s=2e-6))
    assert timeline.ranks[0].issued.tolist() == [[500, 2000]]
    assert timeline.ranks[0].start.tolist() == [[5500, 7000]]


@pytest.mark.parametrize(
    ("host_ns", "ends"), [(0, 140), (100, 140), (120, 140), (139, 140), (140, 140), (300, 300)]
)
@pytest.mark.parametrize("call", ["event", "stream", "device"])
def test_a_wait_ends_a_while_after_the_work(
    ideal_cluster: Cluster, call: str, host_ns: int, ends: int
) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.kernel(100, stream=1)
    rank.event_record(0, stream=1)
    match call:
        case "event":
            rank.event_synchronize(0, host_ns=host_ns)
        case "stream":
            rank.stream_synchronize(1, host_ns=host_ns)
        case _:
            rank.device_synchronize(host_ns=host_ns)
    rank.kernel(10, stream=1)
    timeline = simulate(job.build(), job.durations_s, ideal_cluster, 1, host=HostCosts(0.0, 40e-9))
    assert timeline.ranks[0].end[0, 2] == timeline.ranks[0].start[0, 3] == ends


def test_a_launch_that_blocks_returns_a_while_after_its_kernel(ideal_cluster: Cluster) -> None:
    job = JobBuilder(1)
    for _ in range(2):
        job.ranks[0].kernel(100, blocking=True)
    timeline = simulate(job.build(), job.durations_s, ideal_cluster, 2, host=HostCosts(0.0, 40e-9))
    assert timeline.ranks[0].start.tolist() == [[0, 140], [280, 420]]
    trace = job.build()
    path = critical_path_s(trace, timeline)
    assert path == pytest.approx({"elementwise": 200e-9, "completion": 80e-9})


def test_a_full_queue_is_not_waited_for_longer_than_it_is_full(ideal_cluster: Cluster) -> None:
    job = JobBuilder(1)
    for _ in range(3):
        job.ranks[0].kernel(10)
    timeline = simulate(job.build(), job.durations_s, ideal_cluster, 1, host=HostCosts(0.0, 40e-9, 1))
    assert timeline.ranks[0].issued.tolist() == [[0, 0, 10]]
    assert timeline.ranks[0].start.tolist() == [[0, 10, 20]]


def test_streams_of_pytorch_ignore_the_default_stream(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    job.ranks[0].kernel(10, stream=0)
    job.ranks[0].kernel(10, stream=1)
    assert spans(simulate_ideal(job)) == [(0, 10), (0, 10)]


def test_blocking_streams_synchronise_with_the_default_stream(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.blocking_streams = (1, 2)
    rank.kernel(10, stream=1)
    rank.kernel(30, stream=2)
    rank.kernel(5, stream=0)
    rank.kernel(7, stream=1)
    rank.kernel(40, stream=3)
    assert spans(simulate_ideal(job, iterations=1)) == [(0, 10), (0, 30), (30, 35), (35, 42), (0, 40)]


def test_iteration_ends_with_the_last_work_of_any_rank(simulate_ideal: Simulate) -> None:
    job = JobBuilder(2)
    job.ranks[0].kernel(10)
    job.ranks[1].kernel(30)
    timeline = simulate_ideal(job)
    assert timeline.iteration_end_ns.tolist() == [30, 60, 90]
    idle = timeline.activity_ns[:, 0, Activity.IDLE]
    # Rank 0 runs ahead: nothing makes it wait for rank 1.
    assert idle.tolist() == [0, 30, 30]
    assert (timeline.activity_ns.sum(axis=2) == timeline.iterations_ns[:, None]).all()


def test_durations_that_are_none_are_refused(ideal_cluster: Cluster) -> None:
    job = JobBuilder(1)
    job.ranks[0].kernel(10)
    for wrong in (np.array([np.nan]), np.array([-1.0]), np.array([1.0, 2.0])):
        with pytest.raises(SimulationError, match="duration"):
            simulate(job.build(), wrong, ideal_cluster)


def test_host_that_waits_for_its_group_launches_all_of_it_first(simulate_ideal: Simulate) -> None:
    job = JobBuilder(2)
    both = job.communicator(range(2))
    for rank in job.ranks:
        peer = 1 - rank.rank
        rank.launch_blocking = True
        rank.send(both, peer, 10, group=1)
        rank.recv(both, peer, 10, group=1)
        rank.kernel(5, stream=1)
    timeline = simulate_ideal(job)
    for rank in job.ranks:
        assert spans(timeline, rank=rank.rank)[-1] == (10, 15)
