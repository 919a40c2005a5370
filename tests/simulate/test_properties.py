"""What must hold for every job."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.simulate.types import Timeline
from maya.trace.build import JobBuilder
from maya.trace.pipelines import Pipeline

Simulate = Callable[..., Timeline]
FEW = settings(max_examples=60)

SHAPES = st.builds(
    Pipeline,
    stages=st.integers(1, 4),
    micro_batches=st.sampled_from([1, 2, 4, 6]),
    forward_ns=st.integers(1, 50).map(lambda n: n * 4),
    backward_ns=st.integers(1, 50).map(lambda n: n * 4),
    kernels=st.sampled_from([1, 2]),
    transfer_ns=st.integers(0, 30).map(lambda n: n * 2),
    gradient_ns=st.integers(0, 30).map(lambda n: n * 4),
    replicas=st.integers(1, 2),
)


def scaled(shape: Pipeline, factor: float) -> Pipeline:
    times = {
        name: round(getattr(shape, name) * factor)
        for name in ("forward_ns", "backward_ns", "transfer_ns", "gradient_ns")
    }
    return Pipeline(
        shape.stages, shape.micro_batches, kernels=shape.kernels, replicas=shape.replicas, **times
    )


@FEW
@given(shape=SHAPES)
def test_twice_the_rates_take_half_the_time(simulate_ideal: Simulate, shape: Pipeline) -> None:
    slow, fast = simulate_ideal(shape.job()), simulate_ideal(scaled(shape, 0.5).job())
    assert slow.iteration_end_ns.tolist() == (2 * fast.iteration_end_ns).tolist()
    assert (slow.activity_ns == 2 * fast.activity_ns).all()


@FEW
@given(shape=SHAPES)
def test_activities_sum_to_the_iteration(simulate_ideal: Simulate, shape: Pipeline) -> None:
    timeline = simulate_ideal(shape.job())
    assert (timeline.activity_ns >= 0).all()
    assert (timeline.activity_ns.sum(axis=2) == timeline.iterations_ns[:, None]).all()


@FEW
@given(shape=SHAPES)
def test_folded_and_unfolded_jobs_are_equal(simulate_ideal: Simulate, shape: Pipeline) -> None:
    one, other = simulate_ideal(shape.job()), simulate_ideal(shape.job(folded=False))
    assert one.iteration_end_ns.tolist() == other.iteration_end_ns.tolist()
    for number, rank in enumerate(other.ranks):
        assert (rank.end == one.ranks[number // shape.replicas].end).all()


@FEW
@given(
    times=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12),
    more=st.integers(0, 11),
    extra=st.integers(0, 30),
)
def test_more_work_never_shortens_a_serial_schedule(
    simulate_ideal: Simulate, times: list[tuple[int, int]], more: int, extra: int
) -> None:
    def iteration(longer: bool) -> int:
        job = JobBuilder(1)
        for number, (host, kernel) in enumerate(times):
            added = extra if longer and number == more % len(times) else 0
            job.ranks[0].kernel(kernel + added, host_ns=host)
        job.ranks[0].device_synchronize()
        return int(simulate_ideal(job).iterations_ns[-1])

    assert iteration(False) <= iteration(True) <= iteration(False) + extra


@FEW
@given(order=st.permutations(range(4)), works=st.lists(st.integers(0, 30), min_size=4, max_size=4))
def test_order_of_the_ranks_changes_nothing(
    simulate_ideal: Simulate, order: list[int], works: list[int]
) -> None:
    def ends(placement: list[int]) -> dict[int, list[int]]:
        job = JobBuilder(4)
        world = job.communicator(range(4))
        for rank in job.ranks:
            for _ in range(3):
                rank.kernel(works[placement[rank.rank]])
                rank.event_record(1)
                rank.stream_wait_event(1, 2)
                rank.collective(world, 10, 2)
        timeline = simulate_ideal(job)
        return {placement[n]: np.ravel(rank.end).tolist() for n, rank in enumerate(timeline.ranks)}

    assert ends(order) == ends(list(range(4)))
