"""What an iteration says beyond its length, on schedules that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from maya.clusters import Cluster
from maya.estimate.types import Estimates, Provenance
from maya.simulate import INSTANT, HostCosts, simulate, summarise
from maya.simulate.network import no_network
from maya.simulate.results import communication, critical_path_s, memory_timeline, sm_busy
from maya.simulate.simulation import simulate_without_host
from maya.simulate.types import Prediction, Timeline
from maya.trace.build import JobBuilder
from maya.trace.pipelines import Pipeline
from maya.trace.types import ALLOCATION, RankTrace

Simulate = Callable[..., Timeline]


def nanoseconds(seconds: dict[str, float]) -> dict[str, int]:
    return {name: round(value * 1e9) for name, value in seconds.items()}


def test_the_critical_path_of_overlapped_work_is_the_longer_one(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    rank = job.ranks[0]
    rank.kernel(100, stream=1)
    rank.collective(job.communicator((0,)), 30, stream=2)
    rank.device_synchronize()
    rank.step(host_ns=20)
    assert nanoseconds(critical_path_s(job.build(), simulate_ideal(job))) == {"elementwise": 100, "host": 20}


def test_the_critical_path_goes_through_the_rank_that_came_last(simulate_ideal: Simulate) -> None:
    job = JobBuilder(2)
    both = job.communicator((0, 1))
    for rank, before in zip(job.ranks, (10, 40), strict=True):
        rank.kernel(before)
        rank.event_record(1)
        rank.stream_wait_event(1, 2)
        rank.collective(both, 25, stream=2)
        rank.event_record(2, 2)
        rank.stream_wait_event(2, 1)
    timeline = simulate_ideal(job)
    assert nanoseconds(critical_path_s(job.build(), timeline)) == {"elementwise": 40, "all_reduce": 25}
    assert timeline.critical_path is not None
    assert timeline.critical_path["rank"].tolist() == [1, 1]


def test_a_launch_bound_job_has_its_host_on_the_critical_path(ideal_cluster: Cluster) -> None:
    job = JobBuilder(1)
    for _ in range(10):
        job.ranks[0].kernel(5, host_ns=50)
    job.ranks[0].step()
    timeline = simulate(
        job.build(), job.durations_s, ideal_cluster, host=HostCosts(launch_s=20e-9, completion_s=0.0)
    )
    assert nanoseconds(critical_path_s(job.build(), timeline)) == {"host": 700}


def test_a_full_queue_passes_the_critical_path_to_the_work_it_waits_for(simulate_ideal: Simulate) -> None:
    job = JobBuilder(1)
    for _ in range(8):
        job.ranks[0].kernel(100, host_ns=1)
    path = critical_path_s(job.build(), simulate_ideal(job, queue_depth=2))
    assert nanoseconds(path) == {"elementwise": 800}


def test_the_critical_path_of_1f1b_is_its_length(simulate_ideal: Simulate) -> None:
    job = Pipeline(4, 8, forward_ns=100, backward_ns=200, transfer_ns=7).job()
    timeline = simulate_ideal(job)
    path = nanoseconds(critical_path_s(job.build(), timeline))
    assert sum(path.values()) == timeline.iterations_ns[-1]
    assert path["elementwise"] > 8 * 300


def test_communication_is_told_apart_by_communicator_and_waiting(simulate_ideal: Simulate) -> None:
    job = JobBuilder(4, class_of_rank=(0, 0, 1, 1))
    world = job.communicator((0, 1, 2, 3))
    for rank, before, pair in zip(job.ranks, (0, 60), ((0, 1), (2, 3)), strict=True):
        own = job.communicator(pair)
        rank.kernel(before, stream=2)
        rank.collective(own, 10)
        rank.collective(own, 10)
        rank.collective(world, 50, name="all_gather")
    first, second, _ = communication(job.build(), simulate_ideal(job, iterations=1))
    assert (first.collective, first.calls, first.instances, first.bytes) == ("all_gather", 1, 1, 50)
    assert first.seconds == pytest.approx(80e-9)
    assert first.waiting_s == pytest.approx(30e-9)  # one class waits 60, the other none
    assert (second.collective, second.calls, second.instances, second.bytes) == ("all_reduce", 2, 1, 20)
    assert second.waiting_s == 0


def test_what_runs_as_one_kernel_is_counted_once(simulate_ideal: Simulate) -> None:
    job = JobBuilder(2, class_of_rank=(0, 0))
    world = job.communicator((0, 1))
    for size in (10, 30, 60):
        job.ranks[0].collective(world, size, group=1)
    job.ranks[0].collective(world, 20)
    timeline = simulate_ideal(job, iterations=1)
    (total,) = communication(job.build(), timeline)
    assert (total.calls, total.bytes) == (4, 120)
    assert total.seconds == pytest.approx(timeline.iterations_ns[-1] * 1e-9)


@pytest.mark.parametrize("replicas", [1, 3])
def test_bytes_sent_equal_bytes_received(simulate_ideal: Simulate, replicas: int) -> None:
    job = Pipeline(4, 6, forward_ns=50, backward_ns=90, transfer_ns=11, replicas=replicas).job()
    totals = communication(job.build(), simulate_ideal(job))
    moved = dict.fromkeys(("send", "recv"), 0.0)
    sizes = {"send": 3 / 4, "recv": 3 / 4}  # of the stages, three send and three receive, each way
    for total in totals:
        moved[total.collective] += total.bytes * sizes[total.collective]
    assert moved["send"] == pytest.approx(moved["recv"])


def test_multiprocessors_are_busy_as_far_as_there_are_blocks(
    simulate_ideal: Simulate, ideal_cluster: Cluster
) -> None:
    job = JobBuilder(1)
    job.ranks[0].kernel(3_000_000)  # of one block
    job.ranks[0].step(host_ns=4_500_000)
    trace, timeline = job.build(), simulate_ideal(job, iterations=1)
    busy = sm_busy(trace.ranks[0], timeline.ranks[0], trace.operations, ideal_cluster.device, 0, 4_500_000)
    assert busy == pytest.approx([1 / 132] * 3 + [0, 0])


def test_memory_is_told_over_the_recorded_steps() -> None:
    allocations = np.array([(3, 0, 100), (9, 0, 50), (20, 1, -50)], ALLOCATION)
    rank = RankTrace(0, np.empty(0), peak_reserved_bytes=170, capacity_bytes=0, allocations=allocations)
    assert memory_timeline(rank) == ((0.0, 120), (0.5, 170), (1.0, 120))


def predicted(job: JobBuilder, cluster: Cluster) -> Prediction:
    trace, count = job.build(), len(job.durations_s)
    estimates = Estimates(job.durations_s, np.full(count, Provenance.LEARNED, np.uint8), np.zeros(count))
    network = no_network(max(int(rank.records["rendezvous"].max()) for rank in trace.ranks) + 1)
    timeline = simulate(trace, job.durations_s, cluster, host=INSTANT)
    without_host = simulate_without_host(trace, job.durations_s, cluster, 3, network)
    return summarise(trace, timeline, estimates, cluster, without_host)


def test_the_bubble_does_not_count_waiting_for_slow_hosts(ideal_cluster: Cluster) -> None:
    fast, slow = (
        predicted(Pipeline(4, 8, forward_ns=100, backward_ns=200, host_ns=host).job(), ideal_cluster)
        for host in (0, 500)
    )
    assert fast.pipeline_bubble == slow.pipeline_bubble == pytest.approx(3 / 11)
    assert fast.host_bound_s == 0
    assert slow.host_bound_s == pytest.approx(slow.iteration_time_s - 3300e-9)  # type: ignore[operator]
    assert slow.critical_path_s["host"] > slow.critical_path_s["elementwise"]
