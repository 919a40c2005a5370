"""Pipeline schedules against their published bubbles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from maya.clusters import Cluster
from maya.estimate.types import Estimates, Provenance
from maya.simulate import summarise
from maya.simulate.types import Prediction, Timeline
from maya.trace.build import JobBuilder
from maya.trace.pipelines import Pipeline

Simulate = Callable[..., Timeline]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (4, 4), (4, 16), (8, 5), (5, 2)])
def test_bubble_of_1f1b(simulate_ideal: Simulate, stages: int, micro_batches: int) -> None:
    timeline = simulate_ideal(Pipeline(stages, micro_batches, forward_ns=100, backward_ns=200).job())
    # Time lost over the ideal m (f + b): (p - 1)(f + b), a fraction (p - 1) / m of it.
    assert timeline.iterations_ns[1:].tolist() == [(micro_batches + stages - 1) * 300] * 2


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 4, 3), (4, 16, 4)])
def test_bubble_of_the_interleaved_schedule(
    simulate_ideal: Simulate, stages: int, micro_batches: int, chunks: int
) -> None:
    job = Pipeline(stages, micro_batches, forward_ns=120, backward_ns=240, chunks=chunks).job()
    timeline = simulate_ideal(job)
    # (p - 1)(f + b) / v: a fraction (p - 1) / (m v) (Narayanan et al. 2021, section 2.2.2).
    bubble = (stages - 1) * 360 // chunks
    assert timeline.iterations_ns[1:].tolist() == [micro_batches * 360 + bubble] * 2


def summary(job: JobBuilder, timeline: Timeline, cluster: Cluster) -> Prediction:
    operations = len(job.durations_s)
    learned = np.full(operations, Provenance.LEARNED, np.uint8)
    return summarise(
        job.build(), timeline, Estimates(job.durations_s, learned, np.zeros(operations)), cluster
    )


def test_ranks_that_pass_a_ring_around_are_no_pipeline(
    simulate_ideal: Simulate, ideal_cluster: Cluster
) -> None:
    """As ring attention does (Liu et al. 2023)."""
    job = JobBuilder(4, [0] * 4)
    ring = job.communicator(range(4))
    (rank,) = job.ranks
    for group in range(1, 4):
        rank.send(ring, 1, 100, group=group)
        rank.recv(ring, 3, 100, group=group)
        rank.kernel(50, host_ns=30)
    rank.step()
    prediction = summary(job, simulate_ideal(job), ideal_cluster)
    assert prediction.pipeline_bubble is None and prediction.iteration_time_s > 0


def test_pipeline_bubble_is_reported(simulate_ideal: Simulate, ideal_cluster: Cluster) -> None:
    job = Pipeline(stages=4, micro_batches=8, forward_ns=100, backward_ns=200).job()
    prediction = summary(job, simulate_ideal(job), ideal_cluster)
    assert prediction.pipeline_bubble == pytest.approx(3 / 11)
    assert prediction.iteration_time_s == pytest.approx(3300e-9)
    assert sum(prediction.provenance.values()) == pytest.approx(1.0)


def test_replicas_fold_onto_their_stage(simulate_ideal: Simulate) -> None:
    shape = {
        "stages": 3,
        "micro_batches": 6,
        "forward_ns": 60,
        "backward_ns": 120,
        "kernels": 3,
        "gradient_ns": 90,
    }
    alone, folded = (simulate_ideal(Pipeline(**shape, replicas=n).job()) for n in (1, 8))
    assert alone.iteration_end_ns.tolist() == folded.iteration_end_ns.tolist()
    # The last kernel's third of the gradients is exposed on the stage that ends last.
    assert alone.iterations_ns.tolist()[1:] == [8 * 180 + 30] * 2
