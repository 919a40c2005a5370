"""Collectives and transfers: who waits for whom, and what it counts as."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maya.simulate import SimulationError
from maya.simulate.types import Activity, Timeline
from maya.trace.build import JobBuilder

Simulate = Callable[..., Timeline]


def test_collective_starts_with_the_last_arrival_and_ends_for_all_at_once(simulate_ideal: Simulate) -> None:
    job = JobBuilder(2)
    world = job.communicator((0, 1))
    for rank, before in zip(job.ranks, (10, 40), strict=True):
        rank.kernel(before, stream=1)
        rank.collective(world, 100, stream=1)
    timeline = simulate_ideal(job, iterations=1)
    assert [rank.start[0, 1] for rank in timeline.ranks] == [10, 40]
    assert [rank.end[0, 1] for rank in timeline.ranks] == [140, 140]
    activity = timeline.activity_ns[0]
    assert activity[0, Activity.WAITING] == 30
    assert activity[0, Activity.MOVING] == 100
    assert activity[1, Activity.WAITING] == 0


def test_gradient_all_reduce_overlaps_backward(simulate_ideal: Simulate) -> None:
    """Three layers of backward, each followed by its bucket's all-reduce on a second stream."""
    job = JobBuilder(2, class_of_rank=(0, 0))
    data = job.communicator((0, 1))
    rank = job.ranks[0]
    for layer in range(3):
        rank.kernel(100, stream=1)
        rank.event_record(layer, stream=1)
        rank.stream_wait_event(layer, stream=2)
        rank.collective(data, 60, stream=2)
    rank.event_record(9, stream=2)
    rank.stream_wait_event(9, stream=1)
    rank.kernel(20, stream=1)  # the optimizer
    rank.step()
    timeline = simulate_ideal(job)
    # 3 x 100 backward, the last bucket exposed, the optimizer: 300 + 60 + 20.
    assert timeline.iterations_ns.tolist()[1:] == [380, 380]
    activity = timeline.activity_ns[1, 0]
    assert activity[Activity.OVERLAPPED] == 120
    assert activity[Activity.MOVING] == 60
    assert activity[Activity.COMPUTE] == 200


def test_pairwise_exchange_in_a_group_does_not_deadlock(simulate_ideal: Simulate) -> None:
    job = JobBuilder(2)
    pair = job.communicator((0, 1))
    for rank in job.ranks:
        rank.kernel(5 + 5 * rank.rank, stream=2)
        rank.send(pair, 1 - rank.rank, 30, group=1)
        rank.recv(pair, 1 - rank.rank, 30, group=1)
    timeline = simulate_ideal(job, iterations=2)
    for rank in timeline.ranks:
        assert rank.end[0].tolist()[1:] == [40, 40]
        assert rank.start[0, 1] == rank.start[0, 2]


def exchange_without_a_group() -> JobBuilder:
    """Messages of 30 bytes, which take 30 ns."""
    job = JobBuilder(2)
    pair = job.communicator((0, 1))
    for rank in job.ranks:
        rank.send(pair, 1 - rank.rank, 30)
        rank.recv(pair, 1 - rank.rank, 30)
    return job


def test_the_same_exchange_without_a_group_is_a_deadlock_that_names_its_parties(
    simulate_ideal: Simulate,
) -> None:
    with pytest.raises(SimulationError) as error:
        simulate_ideal(exchange_without_a_group(), buffered_bytes=29)
    assert "rank 0, stream 2: call 0, send with rank 1 0 on communicator 0" in str(error.value)
    assert "rank 1, stream 2: call 0, send with rank 0 0 on communicator 0" in str(error.value)


def test_sends_that_fit_the_buffers_need_no_receiver(simulate_ideal: Simulate) -> None:
    timeline = simulate_ideal(exchange_without_a_group(), iterations=2, buffered_bytes=30)
    for rank in timeline.ranks:
        # Both messages are on their way at once; what has been delivered is received in no time.
        assert rank.start.tolist() == [[0, 30], [30, 60]]
        assert rank.end.tolist() == [[30, 30], [60, 60]]


@pytest.mark.parametrize(
    ("buffered_bytes", "sent", "received"),
    [
        (0, [110, 120, 130], [110, 120, 130]),
        (10, [10, 110, 120], [100, 110, 120]),  # the second waits for the first one's receiver
        (20, [10, 20, 110], [100, 100, 110]),
        (30, [10, 20, 30], [100, 100, 100]),
    ],
)
def test_sends_wait_for_room_in_their_order(
    simulate_ideal: Simulate, buffered_bytes: int, sent: list[int], received: list[int]
) -> None:
    job = JobBuilder(2)
    pair = job.communicator((0, 1))
    job.ranks[1].kernel(100, stream=2)
    for _ in range(3):
        job.ranks[0].send(pair, 1, 10)
        job.ranks[1].recv(pair, 0, 10)
    sends, receives = simulate_ideal(job, iterations=1, buffered_bytes=buffered_bytes).ranks
    assert sends.end[0].tolist() == sent
    assert receives.end[0, 1:].tolist() == received


def test_a_receiver_that_comes_midway_ends_with_the_message(simulate_ideal: Simulate) -> None:
    job = JobBuilder(2)
    pair = job.communicator((0, 1))
    job.ranks[0].send(pair, 1, 50)
    job.ranks[1].kernel(20, stream=2)
    job.ranks[1].recv(pair, 0, 50)
    timeline = simulate_ideal(job, iterations=1)
    assert [timeline.ranks[0].end[0, 0], timeline.ranks[1].end[0, 1]] == [50, 50]
    assert timeline.activity_ns[0, 1, Activity.MOVING] == 30
    assert timeline.activity_ns[0, :, Activity.WAITING].tolist() == [0, 0]


def test_messages_one_way_leave_room_the_other_way(simulate_ideal: Simulate) -> None:
    """A lane of its own for each sender and each receiver."""
    job = JobBuilder(3)
    everyone = job.communicator((0, 1, 2))
    for peer in (1, 2):
        job.ranks[0].send(everyone, peer, 10)
        job.ranks[peer].send(everyone, 0, 10)
    for peer in (1, 2):
        job.ranks[0].recv(everyone, peer, 10)
        job.ranks[peer].recv(everyone, 0, 10)
    timeline = simulate_ideal(job, iterations=1, buffered_bytes=10)
    assert [rank.end[0].tolist() for rank in timeline.ranks] == [[10, 20, 20, 20], [10, 10], [10, 20]]


def test_collectives_in_opposite_orders_deadlock(simulate_ideal: Simulate) -> None:
    job = JobBuilder(2)
    one, other = job.communicator((0, 1)), job.communicator((0, 1))
    for rank in job.ranks:
        for communicator in (one, other) if rank.rank == 0 else (other, one):
            rank.collective(communicator, 10)
    with pytest.raises(SimulationError, match="all_reduce 0 on communicator 1"):
        simulate_ideal(job)


def test_group_on_two_communicators_runs_as_one_kernel(simulate_ideal: Simulate) -> None:
    job = JobBuilder(3)
    left, right = job.communicator((0, 1)), job.communicator((1, 2))
    job.ranks[0].send(left, 1, 10)
    job.ranks[1].recv(left, 0, 10, group=4)
    job.ranks[1].send(right, 2, 50, group=4)
    job.ranks[1].kernel(1, stream=2)
    job.ranks[2].recv(right, 1, 50)
    timeline = simulate_ideal(job, iterations=1)
    assert timeline.ranks[0].end[0].tolist() == [10]
    assert timeline.ranks[1].end[0].tolist() == [50, 50, 51]


def ring(folded: bool) -> JobBuilder:
    job = JobBuilder(4, class_of_rank=(0, 0, 0, 0) if folded else ())
    ranks = job.communicator((0, 1, 2, 3))
    for rank in job.ranks:
        for direction in (1, -1):
            rank.kernel(20, stream=1)
            rank.event_record(direction, stream=1)
            rank.stream_wait_event(direction, stream=2)
            rank.send(ranks, (rank.rank + direction) % 4, 30, group=direction + 5)
            rank.recv(ranks, (rank.rank - direction) % 4, 30, group=direction + 5)
        rank.collective(ranks, 11, stream=2)
        rank.step()
    return job


def test_folded_ring_equals_the_unfolded_one(simulate_ideal: Simulate) -> None:
    folded, unfolded = simulate_ideal(ring(True)), simulate_ideal(ring(False))
    assert folded.iteration_end_ns.tolist() == unfolded.iteration_end_ns.tolist()
    for rank in unfolded.ranks:
        assert (rank.end == folded.ranks[0].end).all()
    assert (unfolded.activity_ns == folded.activity_ns).all()
