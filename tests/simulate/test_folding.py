"""Merged ranks are simulated once: that changes nothing, and a slow rank takes apart what it must."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.clusters import Cluster
from maya.simulate import INSTANT, simulate
from maya.simulate.types import Timeline
from maya.trace.build import JobBuilder
from maya.trace.pipelines import Pipeline
from maya.trace.split import unfold
from maya.trace.types import JobTrace

SHAPES = st.builds(
    Pipeline,
    stages=st.integers(1, 4),
    micro_batches=st.sampled_from([1, 2, 4]),
    forward_ns=st.integers(1, 50).map(lambda n: n * 4),
    backward_ns=st.integers(1, 50).map(lambda n: n * 4),
    transfer_ns=st.integers(0, 30),
    gradient_ns=st.integers(0, 30).map(lambda n: n * 4),
    replicas=st.integers(1, 4),
)


def durations_of(trace: JobTrace, job: JobBuilder) -> np.ndarray:
    """What the job's calls take: here a collective's bytes are its nanoseconds, whoever makes it."""
    known = len(job.durations_s)
    more = [operation.bytes * 1e-9 for operation in trace.operations[known:]]  # type: ignore[union-attr]
    return np.append(job.durations_s, more)


def run(trace: JobTrace, job: JobBuilder, cluster: Cluster) -> Timeline:
    return simulate(trace, durations_of(trace, job), cluster, host=INSTANT)


@settings(max_examples=60)
@given(shape=SHAPES)
def test_a_job_taken_apart_takes_as_long(ideal_cluster: Cluster, shape: Pipeline) -> None:
    job = shape.job()
    trace = job.build()
    folded, apart = run(trace, job, ideal_cluster), run(unfold(trace), job, ideal_cluster)
    assert folded.iteration_end_ns.tolist() == apart.iteration_end_ns.tolist()
    for rank, timeline in enumerate(apart.ranks):
        own = folded.ranks[int(trace.class_of_rank[rank])]
        assert (timeline.start == own.start).all() and (timeline.end == own.end).all()
        assert (apart.activity_ns[:, rank] == folded.activity_ns[:, trace.class_of_rank[rank]]).all()
